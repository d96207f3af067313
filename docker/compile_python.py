"""Compiles the standard library into an image: official images come without compiled code.

A read-only root file system cannot keep what Python compiles, so each start would do it again. What
is there already stays as it is.
"""

import compileall
import re
import sys
import sysconfig

# Nothing at run time imports these.
LEFT_OUT = re.compile(r"/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|site-packages)/")

stdlib = sysconfig.get_path("stdlib")
sys.exit(not compileall.compile_dir(stdlib, quiet=1, rx=LEFT_OUT))
