"""`python -m tailrace_operator`."""

import signal
import sys

# A container's first process gets no signal that it does not handle, and all the imports take a
# while: one that is stopped in its first moments would be waited for, until it is killed.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

from tailrace_operator.app.main import main  # noqa: E402

sys.exit(main())
