"""Linux's asynchronous I/O (io_submit(2)): a write that ends in an event of the loop, no thread.

For the journal, where a durable write costs 40 µs of CPU this way and 120 to 220 µs in a thread,
most of that for handing over the interpreter (docs/decisions/008-journal.md). It is asynchronous
only for direct writes to blocks that were written before; all others block in the call.
"""

import asyncio
import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Callable
from time import monotonic

# io_setup, io_destroy, io_getevents, io_submit (syscalls(2)); elsewhere threads do the work.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
# struct iocb (linux/aio_abi.h): data, key, rw flags, opcode, priority, fd, address, bytes, offset,
# reserved, flags, eventfd.
_IOCB = struct.Struct("<QIIHhIQQqQII")
_IO_EVENT = struct.Struct("<QQqq")  # data, iocb, result or -errno, second result
_IOCB_CMD_PWRITE = 1
_IOCB_FLAG_RESFD = 1
_RWF_DSYNC = 0x2

# Called on the loop: bytes written, or a negative errno.
OnWritten = Callable[[int], None]


class KernelAio:
    """One write at a time. Opened and used on the event loop."""

    def __init__(self, calls: tuple[int, int, int, int]) -> None:
        """OSError when the kernel or its sandbox has none."""
        _, self._destroy_call, getevents_call, submit_call = calls
        # Keeps the interpreter: the calls do not block, and letting go of it costs more than them.
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        self._call(calls[0], ctypes.c_long(1), ctypes.byref(context))
        self._context = ctypes.c_ulong(context.value)
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        one = ctypes.c_long(1)
        self._submit = (ctypes.c_long(submit_call), self._context, one, iocbs)
        self._event = ctypes.create_string_buffer(_IO_EVENT.size)
        no_wait = (ctypes.c_long * 2)(0, 0)
        self._getevents = (
            ctypes.c_long(getevents_call), self._context, one, one, self._event, no_wait,
        )  # fmt: skip
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: OnWritten | None = None
        self.writes_since_s: float | None = None  # when the write under way began, monotonic
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._eventfd, self._on_event)

    @classmethod
    def open(cls) -> "KernelAio | None":
        """None where there is no such thing."""
        calls = _CALLS.get(platform.machine()) if platform.system() == "Linux" else None
        if calls is None:
            return None
        try:
            return cls(calls)
        except OSError:
            return None

    def write(
        self,
        fd: int,
        address: int,
        size_bytes: int,
        position: int,
        done: OnWritten,
        *,
        durable: bool,
    ) -> None:
        """Start a write of whole blocks; `done` follows in a later turn of the loop."""
        assert self._done is None
        self._done = done
        self.writes_since_s = monotonic()
        _IOCB.pack_into(
            self._iocb, 0, 0, 0, _RWF_DSYNC if durable else 0, _IOCB_CMD_PWRITE, 0, fd,
            address, size_bytes, position, 0, _IOCB_FLAG_RESFD, self._eventfd,
        )  # fmt: skip
        try:
            self._call(*self._submit)
        except OSError as error:
            number = error.errno or errno.EIO
            self._loop.call_soon(self._finish, -number)

    def close(self) -> None:
        """No write is under way."""
        assert self._done is None
        self._loop.remove_reader(self._eventfd)
        os.close(self._eventfd)
        self._call(self._destroy_call, self._context)

    def _on_event(self) -> None:
        os.eventfd_read(self._eventfd)
        event_count = self._call(*self._getevents)
        assert event_count == 1, event_count
        self._finish(_IO_EVENT.unpack(self._event)[2])

    def _finish(self, result: int) -> None:
        done, self._done = self._done, None
        self.writes_since_s = None
        assert done is not None
        done(result)

    def _call(self, *arguments: object) -> int:
        """Make a system call. OSError."""
        result = int(self._syscall(*arguments))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def address_of(memory: mmap.mmap) -> int:
    """Return where a mapping begins; it must stay open while the address is used."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
