"""A broker's disk: what a killed process leaves on it, and what a loss of power does.

Files have names; a write lasts a while, and is durable when it was synced itself or its file was
later. A process that dies leaves what was completed; the write under way is there, torn or not.
With the power everything goes that was not synced, sector by sector; names that were made, moved or
removed since the directory was synced go back to what they were, the last ones first.
"""

import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

from tailrace_broker.model.agreement import NOTHING
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Loss, Start
from tests.simulation.ring.data.model_log import ModelLog

SECTOR_BYTES = 512
WRITE_US_MIN = 60
WRITE_US_MAX = 400
BYTES_A_US = 200


class Identity(NamedTuple):
    """What names the disk and counts its processes. Written at once or not at all."""

    incarnation: UUID
    boot: int
    starts: tuple[Start, ...]
    kernel: int  # the boot of the machine
    is_clean: bool  # its last process stopped by itself


class Write(NamedTuple):
    """Bytes at a position of a file, which is made when it is not there."""

    name: str
    position: int
    contents: bytes
    is_synced: bool


class Sync(NamedTuple):
    """All that was written to a file becomes durable."""

    name: str


class Rename(NamedTuple):
    """In place of whatever had the new name."""

    old: str
    new: str


class Remove(NamedTuple):
    """The file has no name any more."""

    name: str


class SyncDirectory(NamedTuple):
    """All names are durable as they are."""


class Identify(NamedTuple):
    """The disk's identity is this one."""

    identity: Identity


DiskAction = Write | Sync | Rename | Remove | SyncDirectory | Identify
Crash = Literal["process", "power"]


class _Written(NamedTuple):
    """A write since the file was synced; `before`: what was there; None: it was synced itself."""

    start: int
    end: int
    before: bytes | None
    size_before: int


@dataclass(slots=True)
class _File:
    contents: bytearray = field(default_factory=bytearray)
    written: list[_Written] = field(default_factory=list)


class Disk:
    """One data directory; `number` tells one from another, an old copy from its original too."""

    def __init__(self, identity: Identity, generator: random.Random) -> None:
        self.identity = identity
        self.kernel = 0
        self.slowness_us = 0
        self.data_slowness_us = 0  # of the logs alone
        self.recovery_us = 0  # how much longer a start takes
        self.logs_recovery_us = 0  # and how much longer the logs, while the process is heard
        self.logs: dict[LogKey, ModelLog] = {}
        self.damaged: set[LogKey] = set()  # the ring does not know of it yet
        self.to_set_aside: set[LogKey] = set()  # of these, by who knows it or starts next
        self.ends: list[Loss] = []  # of its processes, and losses of power in between
        self.is_rotten = False
        # What its processes took for applied, and reported others, at most.
        self.applied = NOTHING
        self.reported_height = -1
        self.reported_term = 0
        self._random = generator
        self._files: dict[str, _File] = {}
        self._names_before: list[tuple[str, _File | None]] = []
        self._under_way: list[DiskAction] = []

    @property
    def files(self) -> Mapping[str, bytes]:
        """What a process finds at its start."""
        return {name: bytes(file.contents) for name, file in sorted(self._files.items())}

    def size_bytes(self, name: str) -> int:
        """Of a file; 0: there is none."""
        file = self._files.get(name)
        return 0 if file is None else len(file.contents)

    def begin(self, action: DiskAction) -> int:
        """It is under way, for so many µs."""
        self._under_way.append(action)
        size_bytes = len(action.contents) if isinstance(action, Write) else 0
        spread_us = int(self._random.random() * (WRITE_US_MAX - WRITE_US_MIN))
        return WRITE_US_MIN + spread_us + size_bytes // BYTES_A_US + self.slowness_us

    def end(self, action: DiskAction) -> None:
        """What was under way is done."""
        self._under_way.remove(action)
        self._perform(action)

    def crashed(self, crash: Crash) -> None:
        """The process is gone; what it left unfinished is there, in part, or not."""
        under_way, self._under_way = self._under_way, []
        for action in under_way:
            self._leave_unfinished(action)
        for log in self.logs.values():
            log.crashed(crash)
        if not self.identity.is_clean:
            self.ends.append(crash)
        if crash == "power":
            self._lose_unsynced()
            self.kernel += 1

    def copy(self) -> "Disk":
        """As it is now, as far as it is durable, without logs: it may come back one day."""
        copied = Disk(self.identity, self._random)
        copied.kernel = self.kernel
        copied._files = deepcopy(self._files)
        copied._names_before = [(name, deepcopy(file)) for name, file in self._names_before]
        copied._lose_unsynced()
        return copied

    def rot(self) -> bool:
        """A bit of a file is another one. False: there is no bit."""
        names = [name for name, file in sorted(self._files.items()) if file.contents]
        if not names:
            return False
        contents = self._files[self._random.choice(names)].contents
        contents[self._random.randrange(len(contents))] ^= 1 << self._random.randrange(8)
        self.is_rotten = True
        return True

    def _perform(self, action: DiskAction) -> None:
        match action:
            case Write(name, position, contents, is_synced):
                self._write(name, position, contents, is_synced=is_synced)
            case Sync(name):
                self._files[name].written.clear()
            case Rename(old, new):
                self._name(new, self._files[old])
                self._name(old, None)
            case Remove(name):
                self._name(name, None)
            case SyncDirectory():
                self._names_before.clear()
            case Identify(identity):
                self.identity = identity

    def _write(self, name: str, position: int, contents: bytes, *, is_synced: bool) -> None:
        file = self._files.get(name)
        if file is None:
            file = _File()
            self._name(name, file)
        end = position + len(contents)
        if file.written or not is_synced:
            before = None if is_synced else bytes(file.contents[position:end])
            file.written.append(_Written(position, end, before, len(file.contents)))
        if len(file.contents) < position:
            file.contents.extend(bytes(position - len(file.contents)))
        file.contents[position:end] = contents

    def _name(self, name: str, file: _File | None) -> None:
        self._names_before.append((name, self._files.get(name)))
        if file is None:
            self._files.pop(name, None)
        else:
            self._files[name] = file

    def _leave_unfinished(self, action: DiskAction) -> None:
        """Whole, not at all, or any of its sectors."""
        fate = self._random.random()
        if fate < 0.35:
            self._perform(action)
        elif fate < 0.7 or not isinstance(action, Write):
            return
        else:
            name, position, contents, is_synced = action
            share = self._random.random()
            for start in range(0, len(contents), SECTOR_BYTES):
                if self._random.random() < share:
                    sector = contents[start : start + SECTOR_BYTES]
                    self._write(name, position + start, sector, is_synced=is_synced)

    def _lose_unsynced(self) -> None:
        for _ in range(self._random.randint(0, len(self._names_before))):
            name, file = self._names_before.pop()
            if file is None:
                self._files.pop(name, None)
            else:
                self._files[name] = file
        self._names_before.clear()
        for name in sorted(self._files):
            self._lose_writes(self._files[name])

    def _lose_writes(self, file: _File) -> None:
        """Back to what was there, the last writes first; never what a later synced one covers."""
        share = self._random.choice((0.0, 0.5, 1.0))
        synced: list[_Written] = []
        for write in reversed(file.written):
            if write.before is None:
                synced.append(write)
                continue
            for start in range(write.start, write.end, SECTOR_BYTES):
                end = min(start + SECTOR_BYTES, write.end)
                is_safe = any(each.start < end and start < each.end for each in synced)
                if not is_safe and self._random.random() < share:
                    old = write.before[start - write.start : end - write.start]
                    file.contents[start:end] = old.ljust(end - start, b"\0")
            end = max([write.size_before, *(each.end for each in synced)])
            if end < len(file.contents) and self._random.random() < share:
                del file.contents[end:]
        file.written.clear()
