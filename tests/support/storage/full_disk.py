"""A disk without a free block: no new file, no new directory, no file that grows."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def full_disk(
    monkeypatch: pytest.MonkeyPatch, is_full: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """The real disk below the storage edge, without space as long as `is_full`.

    What has blocks can be written over, renamed and removed, as on ext4.
    """

    def check(takes_space: bool) -> None:
        if takes_space and is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def checked_open(path: Path, flags: int, *rest: Any, **options: Any) -> int:
        check(bool(flags & os.O_CREAT) and not os.path.exists(path))  # noqa: PTH110  as called
        return real_open(path, flags, *rest, **options)

    def checked_mkdir(path: Path, *rest: Any, **options: Any) -> None:
        check(not os.path.exists(path))  # noqa: PTH110
        real_mkdir(path, *rest, **options)

    def checked_pwritev(fd: int, buffers: Any, position: int, *flags: int) -> int:
        check(position + sum(map(len, buffers)) > os.fstat(fd).st_size)
        return real_pwritev(fd, buffers, position, *flags)

    real_open, real_mkdir, real_pwritev = os.open, os.mkdir, os.pwritev
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", checked_open)
        patched.setattr(os, "mkdir", checked_mkdir)
        patched.setattr(os, "pwritev", checked_pwritev)
        yield
