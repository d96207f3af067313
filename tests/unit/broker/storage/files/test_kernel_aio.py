import asyncio
import errno
import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from tailrace_broker.storage.files.direct_file import BLOCK_BYTES, has_direct_io
from tailrace_broker.storage.files.kernel_aio import KernelAio, address_of

# No call of this number: as in a sandbox, or a kernel without asynchronous I/O.
NO_CALL = 100_000

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="only Linux has it")


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    path.touch()
    direct = os.O_DIRECT if has_direct_io(path.parent) else 0
    fd = os.open(path, flags | direct)
    try:
        yield fd
    finally:
        os.close(fd)


def open_descriptors() -> set[str]:
    return {link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def since_s(aio: KernelAio) -> float | None:
    return aio.writes_since_s


async def write(aio: KernelAio, fd: int, contents: bytes, position: int, *, durable: bool) -> int:
    """The result of one write."""
    memory = mmap.mmap(-1, len(contents))
    memory[:] = contents
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert since_s(aio) is None
    began_s = monotonic()
    aio.write(fd, address_of(memory), len(contents), position, result.set_result, durable=durable)
    assert not result.done()
    writes_since_s = since_s(aio)
    assert writes_since_s is not None
    assert began_s <= writes_since_s <= monotonic()
    written = await result
    assert since_s(aio) is None
    return written


async def test_writes_end_in_an_event_of_the_loop(tmp_path: Path) -> None:
    aio = KernelAio.open()
    assert aio is not None
    with opened(tmp_path / "f") as fd:
        for number in range(5):
            contents = bytes([number]) * BLOCK_BYTES
            position = number * BLOCK_BYTES
            wrote = await write(aio, fd, contents, position, durable=number % 2 == 0)
            assert wrote == BLOCK_BYTES
    aio.close()
    stored = (tmp_path / "f").read_bytes()
    assert stored == b"".join(bytes([number]) * BLOCK_BYTES for number in range(5))


async def test_a_write_that_fails_names_its_error_and_the_next_works(tmp_path: Path) -> None:
    aio = KernelAio.open()
    assert aio is not None
    contents = bytes(BLOCK_BYTES)
    with opened(tmp_path / "f") as closed:
        pass
    assert await write(aio, closed, contents, 0, durable=True) == -errno.EBADF
    with opened(tmp_path / "f", os.O_RDONLY) as read_only:
        assert await write(aio, read_only, contents, 0, durable=True) == -errno.EBADF
    with opened(tmp_path / "f") as fd:
        assert await write(aio, fd, contents, 0, durable=True) == BLOCK_BYTES
    aio.close()


async def test_a_wake_up_without_an_event_is_a_bug() -> None:
    """It must not end the write that is under way."""

    loop = asyncio.get_running_loop()
    problem: asyncio.Future[BaseException] = loop.create_future()
    loop.set_exception_handler(lambda _, context: problem.set_result(context["exception"]))
    aio = KernelAio.open()
    assert aio is not None
    results: list[int] = []
    aio._done = results.append
    os.eventfd_write(aio._eventfd, 1)
    assert isinstance(await problem, AssertionError)
    assert results == []
    aio._done = None
    aio.close()


async def test_where_there_is_none_threads_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="not implemented"):
        KernelAio((NO_CALL,) * 4)
    calls = {platform.machine(): (NO_CALL,) * 4}
    monkeypatch.setattr("tailrace_broker.storage.files.kernel_aio._CALLS", calls)
    assert KernelAio.open() is None
    monkeypatch.setattr("tailrace_broker.storage.files.kernel_aio._CALLS", {})
    assert KernelAio.open() is None


async def test_a_closed_one_keeps_no_descriptor() -> None:
    before = open_descriptors()
    for _ in range(3):
        aio = KernelAio.open()
        assert aio is not None
        aio.close()
    assert open_descriptors() == before
