"""When the write of an I/O thread began that has not ended: how a disk that stalls is noticed.

A thread marks itself while it is in a call that writes; whoever watches reads the marks, without a
lock: what it sees may be a write late.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class IoThread(threading.Thread):
    """`writes_since_s`: on the monotonic clock; None: it writes nothing."""

    writes_since_s: float | None = None


@contextmanager
def writing() -> Iterator[None]:
    """The calling thread is in a call that writes; of other threads nobody takes note.

    Within another one it is a part of that.
    """
    thread = threading.current_thread()
    if not isinstance(thread, IoThread) or thread.writes_since_s is not None:
        yield
        return
    thread.writes_since_s = monotonic()
    try:
        yield
    finally:
        thread.writes_since_s = None
