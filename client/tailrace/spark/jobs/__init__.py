"""Jobs on topics, each one file that runs by `python -m` or `spark-submit` and can be copied."""

import sys
from importlib.util import find_spec

from tailrace.extras import install_command

if not all(map(find_spec, ("pyspark", "pyarrow", "numpy", "crc32c"))):
    _REASON = f"Spark is not installed here: {install_command('spark')}"
    if sys.argv[0] == "-m":  # Python looks for the job: a sentence then, and no traceback
        sys.exit(f"error: {_REASON}")
    raise ImportError(_REASON)
