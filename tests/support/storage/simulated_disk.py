"""A disk that remembers every call in order, and computes what a loss of power could leave.

The calls of the storage edge do their work in a real directory, but nothing is ever synced: what a
sync would have made durable is noted. `image` makes of that, under a seed, a disk as the power may
leave it at any moment of the past:

- A write is durable when it ended and carried RWF_DSYNC, or when its file was synced after it
  ended. Of any other, the one in flight included, any of its blocks may be there, or none; the file
  may have grown all the same, and is zero there.
- A file that was cut is cut for sure only when it was synced afterwards.
- A name that was made, moved or removed is so for sure only when its directory was synced
  afterwards. A move between two directories is one step of the file system's journal: either of
  them makes it durable, and what it is based on.

A killed process is different: all its finished calls are there, and what was not durable may
still be lost by a later loss of power. `kill_after` says in which call it dies.

Calls come from one thread. What is read needs no recording.
"""

import errno
import io
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tailrace_broker.storage.files import direct_file

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
ROOT = 0

# What changes a disk, or opens what does.
CALLS = (
    *("open", "close", "fdopen", "write", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync"),
    *("mkdir", "rename", "replace", "unlink", "remove", "rmdir"),
)

_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)

# A name in a directory: the directory's number, and the name; "" is the directory itself.
Entry = tuple[int, str]


class Killed(BaseException):
    """The process has been killed: no code of it runs any more, handlers of errors least of all."""


class Call(NamedTuple):
    """Something that is about to be done. `takes_space`: a full disk has none for it."""

    name: str
    takes_space: bool


@dataclass(slots=True, eq=False)
class Change:
    """Something done to the disk, and since when nothing can undo it."""

    began: int
    durable_at: int | None = None

    def is_durable(self, time: int) -> bool:
        """At `time` nothing can undo it any more."""
        return self.durable_at is not None and self.durable_at <= time


@dataclass(slots=True, eq=False)
class Write(Change):
    """Bytes at a position of a file."""

    position: int = 0
    contents: bytes = b""


@dataclass(slots=True, eq=False)
class Cut(Change):
    """A file's size is set."""

    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class Naming(Change):
    """Of a file or directory the name `old` goes and `new` comes, in place of what had it."""

    number: int = ROOT
    old: Entry | None = None
    new: Entry | None = None

    @property
    def entries(self) -> list[Entry]:
        """The names that change."""
        return [entry for entry in (self.old, self.new) if entry is not None]


@dataclass(slots=True, eq=False)
class Node:
    """A file or a directory: what was in the file at first, and what was done to it."""

    number: int
    is_directory: bool
    contents: bytes = b""
    changes: list[Write | Cut] = field(default_factory=list)
    unsynced: list[Change] = field(default_factory=list)


class SimulatedDisk:
    """A directory in which every change is recorded."""

    def __init__(self, root: Path, seed: object) -> None:
        """What is there already is durable. Nothing is recorded until `recording`."""
        self.root = root
        self.time = 0
        self.is_dead = False
        self.under_way: list[int] = []  # times at which a write is
        self.removed: list[int] = []  # times at which a file was
        # A write of these bytes to a segment gets to the disk, in part or whole, and fails.
        self.failing: bytes | None = None
        # Asked before each change: the errno with which it fails. A write gets to the disk in part.
        self.trouble: Callable[[Call], int | None] = lambda call: None
        self._generator = random.Random(f"disk {seed}")
        self._calls_left: int | None = None
        self._nodes: list[Node] = []
        self._at_first: dict[Entry, int] = {}
        self._namings: list[Naming] = []
        self._namings_of: defaultdict[Entry, list[Naming]] = defaultdict(list)
        self._files: dict[int, Node] = {}
        self._real_close = os.close
        self._real_pwritev = os.pwritev
        self._scan()
        self._entries = dict(self._at_first)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Calls below the root are recorded while the block lasts."""
        self.is_dead = False
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, partial(getattr(self, f"_{name}"), getattr(os, name)))
            patch.setattr(direct_file, "syncfs", self._syncfs)
            yield

    def tick(self) -> int:
        """The time of something that happens now."""
        self.time += 1
        return self.time

    def kill_after(self, call_count: int) -> None:
        """Let the process die in the change after so many others."""
        self._calls_left = call_count

    def kill(self) -> None:
        """Let it die now: its files close, and so its locks go."""
        self.is_dead = True
        self._calls_left = None
        for fd in self._files:
            self._real_close(fd)
        self._files.clear()

    def image(self, time: int, generator: random.Random, target: Path) -> None:
        """Write to `target`, which is not there, what may be left when the power goes at `time`."""
        entries = self._entries_at(time, generator)
        by_parent: defaultdict[int, list[tuple[str, Node]]] = defaultdict(list)
        for (parent, name), number in entries.items():
            by_parent[parent].append((name, self._nodes[number]))
        pending = [(target, ROOT)]
        while pending:
            path, number = pending.pop()
            path.mkdir()
            for name, node in by_parent[number]:
                if node.is_directory:
                    pending.append((path / name, node.number))
                else:
                    (path / name).write_bytes(_contents_at(node, time, generator))

    def recorded_files(self) -> dict[str, bytes]:
        """All files by their path, as the changes should have left them: was any change missed?"""
        found: dict[str, bytes] = {}
        for (parent, name), number in self._entries.items():
            if not self._nodes[number].is_directory:
                path = "/".join([*self._names_down_to(parent), name])
                found[path] = _contents_at(self._nodes[number])
        return found

    # --- the past ---

    def _scan(self) -> None:
        self._add_node(is_directory=True)
        pending = [(self.root, ROOT)]
        while pending:
            directory, number = pending.pop()
            for path in sorted(directory.iterdir()):
                node = self._add_node(is_directory=path.is_dir())
                self._at_first[number, path.name] = node.number
                if node.is_directory:
                    pending.append((path, node.number))
                else:
                    node.contents = path.read_bytes()

    def _add_node(self, *, is_directory: bool) -> Node:
        self._nodes.append(Node(len(self._nodes), is_directory))
        return self._nodes[-1]

    def _entries_at(self, time: int, generator: random.Random) -> dict[Entry, int]:
        """Which names there are: what is durable, and of the rest any that fit together."""
        entries = dict(self._at_first)
        happened = [naming for naming in self._namings if naming.began <= time]
        share = generator.choice([0.0, 0.5, 1.0])
        stop = generator.choice([len(happened), generator.randint(0, len(happened))])
        lost: set[Entry] = set()
        for index, naming in enumerate(happened):
            may_be_there = index < stop and generator.random() < share
            stands = lost.isdisjoint(naming.entries) and all(
                parent != naming.number for parent, _ in lost
            )
            if not naming.is_durable(time) and not (may_be_there and stands):
                lost.update(naming.entries)
                continue
            if naming.old is not None:
                del entries[naming.old]
            if naming.new is not None:
                entries[naming.new] = naming.number
        return entries

    def _names_down_to(self, number: int) -> list[str]:
        names: list[str] = []
        while number != ROOT:
            number, name = next(entry for entry, each in self._entries.items() if each == number)
            names.append(name)
        return names[::-1]

    # --- the calls ---

    def _open(
        self, real: Callable[..., int], path: Any, flags: int, mode: int = 0o777, **at: Any
    ) -> int:
        entry = self._entry_of(path, **at)
        if entry is None:
            return real(path, flags, mode, **at)
        is_new = bool(entry[1]) and entry not in self._entries and bool(flags & os.O_CREAT)
        if is_new or flags & os.O_TRUNC:
            self._begin(Call("open", is_new))
        elif self.is_dead:
            raise Killed
        fd = real(path, flags & ~_O_DIRECT, mode, **at)
        if is_new:
            node = self._add_node(is_directory=False)
            self._name(Naming(self.tick(), number=node.number, new=entry))
        else:
            node = self._nodes[self._entries[entry] if entry[1] else entry[0]]
            if flags & os.O_TRUNC:
                self._change(node, Cut(self.tick(), size_bytes=0))
        self._files[fd] = node
        return fd

    def _close(self, real: Callable[[int], None], fd: int) -> None:
        if not self.is_dead:  # else closed with its process
            self._files.pop(fd, None)
            real(fd)

    def _fdopen(self, real: Callable[..., Any], fd: int, *args: Any, **options: Any) -> Any:
        return _PlainFile(fd) if fd in self._files else real(fd, *args, **options)

    def _write(self, real: Callable[..., int], fd: int, contents: Any) -> int:
        if fd not in self._files:
            return real(fd, contents)
        position = os.lseek(fd, 0, os.SEEK_CUR)
        written_bytes = self._pwritev(self._real_pwritev, fd, [contents], position)
        os.lseek(fd, written_bytes, os.SEEK_CUR)
        return written_bytes

    def _pwrite(self, real: Callable[..., int], fd: int, contents: Any, position: int) -> int:
        if fd not in self._files and not self.is_dead:
            return real(fd, contents, position)
        return self._pwritev(self._real_pwritev, fd, [contents], position)

    def _pwritev(
        self, real: Callable[..., int], fd: int, buffers: Any, position: int, flags: int = 0
    ) -> int:
        if fd not in self._files and not self.is_dead:
            return real(fd, buffers, position, flags)
        contents = b"".join(bytes(buffer) for buffer in buffers)
        try:
            self._begin(Call("pwritev", self._grows(fd, position + len(contents))))
        except (Killed, OSError):
            self._write_in_part(fd, contents, position)
            raise
        if self._fails(fd, contents):
            self._write_in_part(fd, contents, position)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write = Write(self.tick(), position=position, contents=contents)
        self._change(self._files[fd], write)
        self.under_way.append(self.time)
        real(fd, [contents], position)
        ended = self.tick()
        if flags & _RWF_DSYNC:
            write.durable_at = ended
        return len(contents)

    def _ftruncate(self, real: Callable[[int, int], None], fd: int, size_bytes: int) -> None:
        self._begin(Call("ftruncate", takes_space=False))
        real(fd, size_bytes)
        self._change(self._files[fd], Cut(self.tick(), size_bytes=size_bytes))
        self.tick()

    def _fsync(self, real: Callable[[int], None], fd: int) -> None:
        if fd not in self._files and not self.is_dead:
            return  # of a directory above the root
        self._sync(lambda: [self._files[fd]])

    def _syncfs(self, fd: int) -> None:
        self._sync(lambda: self._nodes)

    def _sync(self, nodes: Callable[[], Sequence[Node]]) -> None:
        self._begin(Call("fsync", takes_space=False))
        synced = nodes()
        self.tick()
        ended = self.tick()
        for node in synced:
            for change in node.unsynced:
                self._make_durable(change, ended)
            node.unsynced.clear()

    def _fdatasync(self, real: Callable[[int], None], fd: int) -> None:
        self._fsync(real, fd)

    def _mkdir(self, real: Callable[..., None], path: Any, mode: int = 0o777, **at: Any) -> None:
        entry = self._entry_of(path, **at)
        if entry is not None:
            self._begin(Call("mkdir", entry not in self._entries))
        real(path, mode, **at)
        if entry is not None:
            node = self._add_node(is_directory=True)
            self._name(Naming(self.tick(), number=node.number, new=entry))

    def _rename(self, real: Callable[..., None], old: Any, new: Any) -> None:
        old_entry, new_entry = self._entry_of(old), self._entry_of(new)
        if old_entry is None:
            real(old, new)
            return
        self._begin(Call("rename", takes_space=False))
        real(old, new)
        number = self._entries[old_entry]
        self._name(Naming(self.tick(), number=number, old=old_entry, new=new_entry))

    _replace = _rename

    def _unlink(self, real: Callable[..., None], path: Any, **at: Any) -> None:
        entry = self._entry_of(path, **at)
        if entry is not None:
            self._begin(Call("unlink", takes_space=False))
        real(path, **at)
        if entry is not None:
            self._name(Naming(self.tick(), number=self._entries[entry], old=entry))

    _remove = _unlink
    _rmdir = _unlink

    # --- what they have in common ---

    def _begin(self, call: Call) -> None:
        """Killed when this call is the one, or comes after it. OSError when it fails."""
        if not self.is_dead and self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left < 0:
                self.is_dead = True
                raise Killed
        if self.is_dead:
            raise Killed
        number = self.trouble(call)
        if number is not None:
            raise OSError(number, os.strerror(number))

    def _grows(self, fd: int, end: int) -> bool:
        return fd in self._files and end > os.fstat(fd).st_size

    def _fails(self, fd: int, contents: bytes) -> bool:
        is_meant = self.failing is not None and self.failing in contents
        return is_meant and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log"

    def _write_in_part(self, fd: int, contents: bytes, position: int) -> None:
        """A process dies in a write, or it fails: the kernel may have got to any block of it."""
        if fd in self._files:
            kept_bytes = self._generator.randint(0, len(contents) // BLOCK_BYTES) * BLOCK_BYTES
            kept = contents[:kept_bytes]
            self._change(self._files[fd], Write(self.tick(), position=position, contents=kept))
            self._real_pwritev(fd, [kept], position)

    def _change(self, node: Node, change: Write | Cut) -> None:
        node.changes.append(change)
        node.unsynced.append(change)

    def _name(self, naming: Naming) -> None:
        self._namings.append(naming)
        if naming.new is None:
            self.removed.append(naming.began)
        for entry in naming.entries:
            self._namings_of[entry].append(naming)
            self._nodes[entry[0]].unsynced.append(naming)
        if naming.old is not None:
            del self._entries[naming.old]
        if naming.new is not None:
            self._entries[naming.new] = naming.number
        self.tick()

    def _make_durable(self, change: Change, time: int) -> None:
        """And what had to come before it: earlier changes of the same names."""
        if change.durable_at is None:
            change.durable_at = time
            for entry in change.entries if isinstance(change, Naming) else ():
                for before in self._namings_of[entry]:
                    if before.began < change.began:
                        self._make_durable(before, time)

    def _entry_of(self, path: Any, dir_fd: int | None = None) -> Entry | None:
        """The name in its directory; None when it is not below the root."""
        if dir_fd is not None:
            return (self._files[dir_fd].number, os.fspath(path)) if dir_fd in self._files else None
        try:
            parts = Path(path).relative_to(self.root).parts
        except ValueError:
            return None
        number = ROOT
        for name in parts[:-1]:
            if (number, name) not in self._entries:
                break  # the real call says that it is not there
            number = self._entries[number, name]
        return number, parts[-1] if parts else ""


class _PlainFile(io.RawIOBase):
    """What `os.fdopen` gives: all its writes are recorded."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def write(self, contents: Any) -> int:
        return os.write(self._fd, contents)


def _contents_at(
    node: Node, time: int | None = None, generator: random.Random | None = None
) -> bytes:
    """A file's bytes as they may be at `time`; without one as they are."""
    contents = bytearray(node.contents)
    for change in node.changes:
        if time is not None and change.began > time:
            break
        is_whole = time is None or generator is None or change.is_durable(time)
        if isinstance(change, Cut):
            if is_whole or (generator and generator.random() < 0.5):
                _set_size(contents, change.size_bytes)
        elif is_whole:
            _put(contents, change.position, change.contents)
        elif generator:
            _put_in_part(contents, change, generator)
    return bytes(contents)


def _put_in_part(contents: bytearray, write: Write, generator: random.Random) -> None:
    """Any of its blocks; the file may have grown by all of it."""
    size_bytes = len(write.contents)
    block_bytes = generator.choice([SECTOR_BYTES, BLOCK_BYTES])
    starts = list(range(0, size_bytes, block_bytes))
    cut = generator.randint(0, len(starts))
    match generator.choice(["none", "all", "first", "last", "any", "all but one"]):
        case "none":
            starts = []
        case "first":
            starts = starts[:cut]
        case "last":
            starts = starts[cut:]
        case "any":
            starts = [start for start in starts if generator.random() < 0.5]
        case "all but one":
            del starts[cut : cut + 1]
    # A size is what it was, what it was to be, or where a block of the file system ends.
    sizes_bytes = [write.position + size_bytes] if generator.random() < 0.5 else []
    if starts:
        block_end = (write.position + starts[-1]) // BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES
        sizes_bytes.append(min(block_end, write.position + size_bytes))
    _set_size(contents, max([len(contents), *sizes_bytes]))
    for start in starts:
        _put(contents, write.position + start, write.contents[start : start + block_bytes])


def _put(contents: bytearray, position: int, new: bytes) -> None:
    if new:
        _set_size(contents, max(len(contents), position))
        contents[position : position + len(new)] = new


def _set_size(contents: bytearray, size_bytes: int) -> None:
    del contents[size_bytes:]
    contents.extend(bytes(size_bytes - len(contents)))
