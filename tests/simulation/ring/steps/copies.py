"""Copies of sealed ranges on one process: `topics.sealed_copies` in small, over model logs.

What is to be copied, what may be dropped, and who may leave the shipped code says. A log is read
piece by piece from any broker that has a whole copy and is reached; what is here already is
compared first. A log that the broker need not hold any more is removed.
"""

from functools import partial
from typing import TYPE_CHECKING

from tailrace_broker.core.replication.ranges import logs_of
from tailrace_broker.core.ring.copies import copies_to_make
from tailrace_broker.core.ring.topics import slices_in
from tailrace_broker.model.commands import Completed
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, RingState
from tests.simulation.ring.data.model_log import ModelLog
from tests.simulation.ring.schedule import US_PER_MS

if TYPE_CHECKING:
    from tests.simulation.ring.data.host import Host
    from tests.simulation.ring.data.replicas import Shell
    from tests.simulation.ring.process import Process
    from tests.simulation.ring.world import World

PIECE_ENTRIES = 40
PAUSE_MS_MAX = 20


class SealedCopies:
    """`_whole`: logs that were found whole, with the broker's number in their range then."""

    def __init__(self, process: "Process", shell: "Shell", world: "World") -> None:
        self._process = process
        self._shell = shell
        self._host = shell.host
        self._world = world
        self._whole: dict[LogKey, tuple[int, int]] = {}
        self._busy: set[LogKey] = set()
        self._is_due = False

    def applied(self, before: RingState | None, state: RingState) -> None:
        """Remove what need not be held, and fetch what is to be."""
        if before is None or before.ranges is not state.ranges:
            self._remove(state)
            if copies_to_make(state, self._host.ordinal):
                self._fetch_later()

    def _remove(self, state: RingState) -> None:
        topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
        for key, range_id in [found for topic in topics for found in logs_of(topic)]:
            owner = state.ranges[range_id]
            is_of_others = owner.is_sealed and self._host.ordinal not in owner.replicas
            if is_of_others and self._host.logs.pop(key, None) is not None:
                self._world.rules["copies.removed"] += 1

    def _fetch_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            pause_us = self._shell.random.randrange(1, PAUSE_MS_MAX * US_PER_MS)
            self._world.schedule.after(pause_us, lambda: self._host.do(self._fetch))

    def _fetch(self) -> None:
        self._is_due = False
        control = self._process.control
        assert control is not None
        state, mine = control.state, control.registration
        if state is None or mine is None:
            return
        wanted = copies_to_make(state, mine.ordinal)
        for held in wanted:
            number = held.replica_of(mine).number
            missing = [key for key in _logs_in(state, held) if self._whole.get(key) != number]
            if not missing:
                self._world.rules["copies.completed"] += 1
                self._shell.ask(self._host, Completed(held.id, mine.ordinal, *number))
            elif not self._busy.intersection(missing):
                self._copy_some(held, self._shell.random.choice(missing), number)
        if wanted:
            self._fetch_later()

    def _copy_some(self, held: RangeState, key: LogKey, number: tuple[int, int]) -> None:
        source = self._source(held)
        if source is None or key not in source.logs:
            return
        theirs, logs = source.logs[key], self._host.logs
        if key not in logs:
            logs[key] = self._shell.new_log(self._host.ordinal, key)
        log, to_set_aside = logs[key], self._process.disk.to_set_aside
        if key in to_set_aside:  # what is damaged is no beginning
            log.set_aside(theirs.start)
            to_set_aside.discard(key)
        if not _is_beginning(log, theirs):
            log.set_aside(theirs.start)
        if log.start < theirs.start:
            log.set_start(theirs.start)
        self._busy.add(key)
        if log.end == theirs.end:
            log.flush(lambda _: self._host.do(partial(self._found_whole, key, number)))
        else:
            entries = theirs.read(log.end, log.end + PIECE_ENTRIES)
            done = partial(self._busy.discard, key)
            log.append(log.end, entries, is_durable=False, then=lambda _: self._host.do(done))

    def _found_whole(self, key: LogKey, number: tuple[int, int]) -> None:
        self._busy.discard(key)
        self._whole[key] = number

    def _source(self, held: RangeState) -> "Host | None":
        """A process that knows that it has a whole copy, and that is reached."""
        found = []
        for ordinal in held.complete:
            process = self._world.newest(ordinal)
            if process is None or process.shell is None or process.is_paused:
                continue
            control = process.control
            if control is None or control.state is None or control.registration is None:
                continue
            known = control.state.ranges.get(held.id)
            knows = known is not None and ordinal in known.complete
            if knows and self._world.network.is_open(self._process, process):
                found.append(process.shell.host)
        return self._shell.random.choice(found) if found else None


def _logs_in(state: RingState, held: RangeState) -> list[LogKey]:
    """Of topics that are not deleted."""
    return [
        LogKey(topic_id, slices.first_partition + index)
        for topic_id, slices in slices_in(state, held.id).items()
        for index in range(len(slices.starts))
    ]


def _is_beginning(log: ModelLog, theirs: ModelLog) -> bool:
    """What is here is what the other log has there; all of it."""
    first = theirs.start
    if not log.start <= first <= log.end <= theirs.end:
        return False
    return [each.value for each in log.read(first, log.end)] == [
        each.value for each in theirs.read(first, log.end)
    ]
