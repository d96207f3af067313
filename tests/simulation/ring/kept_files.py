"""Does on a simulated disk what the shipped metadata log decides: which bytes go where, and when.

Two things at most are under way at a time: a write of the log, with all that gathered while the one
before was under way, and a snapshot that a compaction asked for. A killed process abandons both.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from tailrace_broker.codec.metadata_log import encode_snapshot
from tailrace_broker.codec.ring_snapshot import encode_slices
from tailrace_broker.core.node.events import CompactState, ControlEvent
from tailrace_broker.core.raft import metadata_log
from tailrace_broker.core.raft.events import Compacted, Durable, Keep, Replace
from tailrace_broker.core.raft.metadata_log import MetadataLog, snapshot_name
from tailrace_broker.model.agreement import Kept, Record, Snapshot
from tests.simulation.ring.disk import (
    Disk,
    DiskAction,
    Remove,
    Rename,
    Sync,
    SyncDirectory,
    Write,
)
from tests.simulation.ring.schedule import Schedule

Then = Callable[[], None]
Work = Keep | Replace | CompactState | tuple[list[DiskAction], Then] | Snapshot


class Owner(Protocol):
    """Is reported when something is durable."""

    def step(self, event: ControlEvent) -> None:
        """Take in `Durable` and `Compacted`."""


class KeptFiles:
    """The files of one process, which dies with it."""

    def __init__(self, disk: Disk, schedule: Schedule, owner: Owner) -> None:
        self._disk = disk
        self._schedule = schedule
        self._owner = owner
        self._log: MetadataLog | None = None
        self._waiting: deque[Work] = deque()
        self._is_busy = False
        self._is_writing_snapshot = False
        self._last: tuple[DiskAction, Then] | None = None
        self._is_abandoned = False

    def load(self, log_bytes: int, then: Callable[[Kept], None]) -> None:
        """Read what the disk keeps, and make it durable before anything is notified of it."""
        kept, self._log = MetadataLog.recover(self._disk.files, log_bytes=log_bytes)
        self.act(self._actions(self._log.prepare()), partial(then, kept))

    def keep(self, work: Keep | Replace | CompactState) -> None:
        """In its turn; then the owner hears of it."""
        self._waiting.append(work)
        self._go_on()

    def act(self, actions: Iterable[DiskAction], then: Then) -> None:
        """Something else on the same disk, in its turn."""
        self._waiting.append((list(actions), then))
        self._go_on()

    def close(self, last: DiskAction, then: Then) -> None:
        """The last thing, when nothing else waits or is under way; nothing is asked for after."""
        self._last = (last, then)
        self._go_on()

    def abandon(self) -> None:
        """Nothing is written or reported any more."""
        self._is_abandoned = True

    def _go_on(self) -> None:
        """Begin what waits; what is under way has an end of its own."""
        if self._is_busy:
            return
        if not self._waiting:
            self._close()
            return
        self._is_busy = True
        work = self._waiting.popleft()
        match work:
            case Keep(number, records):
                number, gathered = self._gather(number, records)
                self._write(self._kept(gathered), partial(self._owner.step, Durable(number)))
            case Replace(number, snapshot, records):
                assert self._log is not None
                actions = self._log.replace(snapshot, records)
                self._write(actions, partial(self._owner.step, Durable(number)))
            case CompactState():
                self._begin_compaction(work)
            case Snapshot():
                assert self._log is not None
                actions = self._log.end_compaction(work.id)
                self._write(actions, partial(self._owner.step, Compacted(work)))
            case (actions, then):
                self._do(iter(actions), partial(self._done, then))

    def _close(self) -> None:
        """If that is asked for, and the snapshot that is written meanwhile is whole."""
        if self._last is not None and not self._is_writing_snapshot:
            self._is_busy = True  # for ever
            last, then = self._last
            self._do(iter((last,)), then)

    def _gather(self, number: int, records: tuple[Record, ...]) -> tuple[int, list[Record]]:
        """What was to be kept by now goes into one write."""
        gathered = [*records]
        while self._waiting and isinstance(self._waiting[0], Keep):
            number, records = self._waiting[0].number, self._waiting[0].records
            gathered += records
            self._waiting.popleft()
        return number, gathered

    def _kept(self, records: list[Record]) -> list[metadata_log.FileAction]:
        assert self._log is not None
        return self._log.keep(records)

    def _begin_compaction(self, work: CompactState) -> None:
        assert self._log is not None
        actions = self._log.begin_compaction(work.id, work.records)
        state = tuple(encode_slices(work.state))
        slices = encode_snapshot(work.id, work.configuration, state)
        written = metadata_log.WriteSnapshot(snapshot_name(work.id), tuple(slices))
        snapshot = Snapshot(work.id, work.configuration, b"".join(state))

        def is_written() -> None:
            self._is_writing_snapshot = False
            self._waiting.append(snapshot)
            self._go_on()

        self._is_writing_snapshot = True
        self._do(self._actions([written]), is_written)
        self._write(actions, partial(self._owner.step, Durable(work.number)))

    def _write(self, actions: Iterable[metadata_log.FileAction], then: Then) -> None:
        self._do(self._actions(actions), partial(self._done, then))

    def _done(self, then: Then) -> None:
        self._is_busy = False
        self._go_on()
        then()

    def _do(self, actions: Iterator[DiskAction], then: Then) -> None:
        """One after the other."""
        action = next(actions, None)
        if action is None:
            then()
            return
        delay_us = self._disk.begin(action)
        self._schedule.after(delay_us, partial(self._is_done, action, actions, then))

    def _is_done(self, action: DiskAction, actions: Iterator[DiskAction], then: Then) -> None:
        if not self._is_abandoned:
            self._disk.end(action)
            self._do(actions, then)

    def _actions(self, actions: Iterable[metadata_log.FileAction]) -> Iterator[DiskAction]:
        """What each means for the disk."""
        for action in actions:
            match action:
                case metadata_log.Reserve(name, size_bytes):
                    has_bytes = self._disk.size_bytes(name)
                    yield Write(name, has_bytes, bytes(size_bytes - has_bytes), is_synced=False)
                    yield Sync(name)
                    yield SyncDirectory()
                case metadata_log.Sync(name):
                    yield Sync(name)
                case metadata_log.Write(name, position, contents):
                    yield Write(name, position, contents, is_synced=True)
                case metadata_log.WriteSnapshot(name, slices):
                    yield from self._snapshot(name, slices)
                case metadata_log.Remove(name):
                    yield Remove(name)

    def _snapshot(self, name: str, slices: Iterable[bytes]) -> Iterator[DiskAction]:
        temporary, position = name + ".new", 0
        if self._disk.size_bytes(temporary):
            yield Remove(temporary)
        for each in slices:
            yield Write(temporary, position, each, is_synced=False)
            position += len(each)
        yield Sync(temporary)
        yield Rename(temporary, name)
        yield SyncDirectory()
