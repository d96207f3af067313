"""`python -m tailrace_operator`."""

import sys

from tailrace_operator.main import main

sys.exit(main())
