"""The input of `tailrace produce`: a file that is there as a whole, or a pipe that may pause."""

import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from io import BufferedIOBase, BufferedReader, BytesIO
from pathlib import Path
from termios import FIONREAD
from typing import Protocol

from tailrace.cli.lib.interrupts import Interrupts
from tailrace.errors import TailraceError

# One request: large enough that its cost is the bytes', far below the broker's maxRequestBytes.
# Lines are two bytes or more: these are fewer than the broker's 500,000 events.
BATCH_BYTES = 960 * 1024
# How long a line of a pipe waits for others to share its request.
LINGER_S = 0.02
# The same when a run is resumed: a run that is repeated is to send the same requests, which brokers
# recognise, so that no pause of the writer may decide where one ends.
RESUMED_LINGER_S = 1.0
READ_BYTES = 1 << 20


class Input(Protocol):
    """Batches of whole lines with their line ends; only the last line may have none."""

    size_bytes: int | None = None
    is_terminal: bool = False

    def batches(self) -> Iterator[list[bytes]]:
        """Each is sent as one request at most. TailraceError: the input cannot be read."""

    def position(self) -> int:
        """How much of `size_bytes` is read."""
        return 0

    def take_rest(self) -> list[bytes]:
        """After an interrupt: the whole lines that are read and in no batch yet."""
        return []

    @property
    def unfinished_bytes(self) -> int:
        """Of a last line whose end was not read."""
        return 0


class GivenInput(Input):
    """The events of the command line."""

    def __init__(self, events: Sequence[str]) -> None:
        self._events = [event.encode() for event in events]

    def batches(self) -> Iterator[list[bytes]]:
        """All at once: an argument list is far below what one request may have."""
        yield self._events


class FileInput(Input):
    """A regular file, compressed or not."""

    def __init__(self, file: Path, raw: BufferedReader) -> None:
        self._file = file
        self._raw = raw
        self.size_bytes = os.fstat(raw.fileno()).st_size

    def batches(self) -> Iterator[list[bytes]]:
        """All but the last are `BATCH_BYTES` or longer."""
        if self._file.suffix != ".gz":
            yield from read_batches(self._raw)
            return
        import gzip
        import zlib

        try:
            yield from read_batches(gzip.GzipFile(fileobj=self._raw))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TailraceError(f"{self._file} is not a whole gzip file ({error})") from error

    def position(self) -> int:
        """Of a compressed file: in what is compressed."""
        return self._raw.tell() if self._raw.seekable() else 0


class LiveInput(Input):
    """A pipe, a terminal or a device: what is there is sent when nothing follows for `linger_s`.

    Without a pause the batches are those of a file with the same content.
    """

    def __init__(
        self, descriptor: int, interrupts: Interrupts, *, linger_s: float = LINGER_S
    ) -> None:
        self.is_terminal = os.isatty(descriptor)
        self._descriptor = descriptor
        self._poll = select.poll()  # unlike select(2), of any descriptor
        self._poll.register(descriptor, select.POLLIN)
        self._interrupts = interrupts
        self._linger_s = linger_s
        self._read = bytearray()
        self._has_ended = False

    def batches(self) -> Iterator[list[bytes]]:
        """About `BATCH_BYTES` when the writer is fast, else what came in `linger_s`."""
        while lines := self._next_lines():
            yield lines

    def take_rest(self) -> list[bytes]:
        """Also what the pipe holds. A last line without an end may be cut, as its writer was."""
        read_bytes = 0
        while read_bytes < BATCH_BYTES and self._is_readable(0):
            chunk = os.read(self._descriptor, READ_BYTES)
            if not chunk:
                break
            self._read += chunk
            read_bytes += len(chunk)
        return self._cut(self._read.rfind(b"\n") + 1, -1)

    @property
    def unfinished_bytes(self) -> int:
        """What was read behind the last line end."""
        return len(self._read)

    def _next_lines(self) -> list[bytes]:
        """Empty at the end of the input."""
        end = self._read.rfind(b"\n") + 1  # of the last line that is whole
        deadline_s = time.monotonic() + self._linger_s if end else None
        while not self._has_ended and end <= BATCH_BYTES:
            wait_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            with self._interrupts.waiting():
                is_readable = self._is_readable(wait_s)
            if not is_readable:
                break
            chunk = os.read(self._descriptor, READ_BYTES)
            self._has_ended = not chunk
            if b"\n" in chunk:
                end = len(self._read) + chunk.rfind(b"\n") + 1
                deadline_s = deadline_s or time.monotonic() + self._linger_s
            self._read += chunk
        return self._cut(len(self._read) if self._has_ended else end, BATCH_BYTES)

    def _is_readable(self, wait_s: float | None) -> bool:
        return bool(self._poll.poll(None if wait_s is None else math.ceil(wait_s * 1000)))

    def _cut(self, end: int, batch_bytes: int) -> list[bytes]:
        """Take lines, as `read_batches` does of a file; -1: all of them."""
        lines = BufferedReader(BytesIO(self._read[:end])).readlines(batch_bytes)
        del self._read[: sum(map(len, lines))]
        return lines


@contextmanager
def opened(
    events: Sequence[str], file: Path, interrupts: Interrupts, *, is_resumed: bool
) -> Iterator[Input]:
    """The events that are given, else a file or standard input, for what it is."""
    if events:
        yield GivenInput(events)
        return
    with open(0, "rb", closefd=False) if file == Path("-") else file.open("rb") as raw:
        is_whole = stat.S_ISREG(os.fstat(raw.fileno()).st_mode) or file.suffix == ".gz"
        if is_whole:
            yield FileInput(file, raw)
            return
        linger_s = RESUMED_LINGER_S if is_resumed else LINGER_S
        yield LiveInput(raw.fileno(), interrupts, linger_s=linger_s)


def unread_bytes(descriptor: int) -> int:
    """What a pipe holds now; 0 of anything else."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        return int.from_bytes(ioctl(descriptor, FIONREAD, bytes(4)), sys.byteorder)
    except OSError:  # it is closed
        return 0


def read_batches(stream: BufferedIOBase, batch_bytes: int = BATCH_BYTES) -> Iterator[list[bytes]]:
    """Whole lines, together at least `batch_bytes` long but for the last batch."""
    while lines := stream.readlines(batch_bytes):
        yield lines
