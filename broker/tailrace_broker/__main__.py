"""`python -m tailrace_broker`."""

import sys

from tailrace_broker.app.main import main

sys.exit(main())
