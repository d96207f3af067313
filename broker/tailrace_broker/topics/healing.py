"""Damage that a running broker finds in a log of a range with several replicas.

1. The log is marked, durably; then the ring is asked for `Lost`: this replica becomes a ghost, and
   leads no more. Of a sealed range its copy is not complete any more. The only copy waits with this
   until there are others.
2. With the state that says so the log is closed, set aside and opened again, empty; it follows.
3. When the replica is in sync again, or its copy of a sealed range is whole, what was set aside is
   removed.

What a start finds begins with 2: its registration says what is damaged.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import structlog

from tailrace_broker.core.replication.ranges import logs_of
from tailrace_broker.core.ring.roles import is_elsewhere
from tailrace_broker.model.errors import StoredDataError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Registration, RingState
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.damaged_logs import DamagedLogs

# After the disk has refused to note damage; sooner when the ring agrees on something.
RETRY_SECONDS = 5.0

_log = structlog.get_logger()


class Healing:
    """State changes on the event loop only."""

    def __init__(
        self,
        ring: RingNode,
        damaged: DamagedLogs,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._ring = ring
        self._damaged = damaged
        self._io = io
        self._spawn = spawn
        self._found: dict[LogKey, int] = {}  # damaged logs that are not reported, with their ranges
        # Of those that are the number that this process had in the range then.
        self._numbers: dict[LogKey, tuple[int, int]] = {}
        self._marking: set[LogKey] = set()
        self._removing: set[LogKey] = set()

    def note_damage(self, key: LogKey, range_id: int) -> None:
        """A log lacks committed records. Once for each, until it is set aside."""
        if key not in self._numbers:
            self._found[key] = range_id
            self.report_found()

    def forget_found(self, keys: Iterable[LogKey]) -> None:
        """These logs are about to be opened again, which shows what they lack: not what somebody
        has accepted since it was found.
        """
        for key in keys:
            self._found.pop(key, None)

    def report_found(self) -> None:
        """Report the damaged logs of which others have a copy by now."""
        state, mine = self._ring.state, self._ring.registration
        if state is None or mine is None:
            return
        self._take_back(state, mine)
        for key, range_id in list(self._found.items()):
            owner = state.ranges.get(range_id)
            if owner is None or mine.ordinal not in owner.holders:  # which the ring knows
                del self._found[key]
            elif is_elsewhere(owner, mine.ordinal):
                del self._found[key]
                self._numbers[key] = owner.replica_of(mine).number
                self._marking.add(key)
                self._spawn(self._report(key, range_id))

    def _take_back(self, state: RingState, mine: Registration) -> None:
        """What the ring refuses by now, since there is no other copy any more, waits again."""
        reported = self._numbers.keys() - self._marking
        for key, range_id in _ranges_of(state, reported) if reported else ():
            if state.ranges[range_id].holders == (mine.ordinal,):
                del self._numbers[key]
                self._found[key] = range_id

    async def _report(self, key: LogKey, range_id: int) -> None:
        try:
            is_there = await self._io.run(partial(self._damaged.mark_in_place, key))
        except StoredDataError as error:  # nobody else reports what is known to be damaged
            _log.error("damage.unmarked", partition=key.partition, detail=error.detail)
            del self._numbers[key]
            self._found[key] = range_id
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.report_found)
            return
        finally:
            self._marking.discard(key)
        state, mine = self._ring.state, self._ring.registration
        owner = None if state is None else state.ranges.get(range_id)
        if owner is None or mine is None or not is_there:
            del self._numbers[key]  # when it is opened again its damage is found again
            return
        # The ring may have heard of another log of the range since.
        self._numbers[key] = owner.replica_of(mine).number
        self._ring.note_damage(range_id)

    def take_lost(self, state: RingState, mine: Registration | None) -> Iterator[LogKey]:
        """Logs to be set aside: the ring knows that they are damaged, and so does the disk."""
        if mine is None or not self._numbers:
            return
        for key, range_id in _ranges_of(state, self._numbers.keys() - self._marking):
            if state.ranges[range_id].replica_of(mine).number != self._numbers[key]:
                del self._numbers[key]
                yield key

    def remove_healed(self, state: RingState, mine: Registration | None) -> None:
        """Remove what was set aside where this replica is in sync again."""
        if mine is None or not self._damaged.known:
            return
        known = set(self._damaged.known)
        there = _ranges_of(state, known)
        for key in known.difference(key for key, _ in there):
            self._damaged.forget(key)
        busy = {*self._found, *self._numbers, *self._damaged.unreset, *self._removing}
        for key, range_id in there:
            owner = state.ranges[range_id]
            is_whole = mine.ordinal in owner.complete or owner.replica_of(mine) in owner.isr
            if key not in busy and is_whole:
                self._removing.add(key)
                self._spawn(self._remove(key))

    async def _remove(self, key: LogKey) -> None:
        try:
            await self._io.run(partial(self._damaged.remove, key))
            _log.info("partition.healed", topic_id=str(key.topic_id), partition=key.partition)
        except StoredDataError as error:  # the next start fetches the log once more
            _log.warning("damaged.kept", partition=key.partition, detail=error.detail)
        self._removing.discard(key)


def _ranges_of(state: RingState, keys: Collection[LogKey]) -> list[tuple[LogKey, int]]:
    """The ranges of these logs, of topics that are there or can be restored."""
    ids = {each.topic_id for each in keys}
    topics = [*state.topics.values(), *(each.topic for each in state.deleted.values())]
    known = (each for each in topics if each.id in ids)
    return [found for each in known for found in logs_of(each) if found[0] in keys]
