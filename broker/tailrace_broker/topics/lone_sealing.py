"""Seals ranges with one copy, which is here, for a step of the ring.

They have no replica (`topics.replicas`): their logs commit alone. The rules are those of
`core.replication.sealing`: hold appends, wait until all that was appended is durable, propose the
ends until the applied state has them or the step is gone, and append nothing more in the epoch.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import chain
from typing import Any

import structlog

from tailrace_broker.core.replication.events import ReplicationTiming
from tailrace_broker.core.ring.roles import is_replicated
from tailrace_broker.core.ring.steps import OpenStep, open_step
from tailrace_broker.model.commands import AbortStep, Sealed
from tailrace_broker.model.errors import NotReadyError, TailraceError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tailrace_broker.topics.next_epoch import lead_in_next_epoch

# How often it checks whether the logs are durable, and after how long it proposes again.
CHECK_SECONDS = 0.005
PROPOSE_SECONDS = 0.2
NOT_HELD = "its leader does not hear the broker that joins, or has a partition that is not whole"
NOT_STORED = "its leader has not stored all of it"

_log = structlog.get_logger()


class LoneSealing:
    """State changes on the event loop only."""

    def __init__(
        self,
        ring: RingNode,
        role_of: Callable[[int], RangeRole],
        log_of: Callable[[LogKey], PartitionLog | None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        timing: ReplicationTiming = ReplicationTiming(),  # noqa: B008  immutable
    ) -> None:
        """`log_of` returns a log of this broker that is open."""
        self._ring = ring
        self._role_of = role_of
        self._log_of = log_of
        self._spawn = spawn
        self._timing = timing
        self._under_way: set[int] = set()  # ranges
        self._loop = asyncio.get_running_loop()

    def apply(self, state: RingState) -> None:
        """Seal what the state's open step is to seal here. The roles are of the state already."""
        if state.step is None:
            return
        for range_id in state.step.parents:
            role = self._role_of(range_id)
            is_mine = role.epoch is not None and not is_replicated(state.ranges[range_id])
            if is_mine and range_id not in self._under_way:
                self._under_way.add(range_id)
                self._spawn(self._seal(range_id, role))

    async def _seal(self, range_id: int, role: RangeRole) -> None:
        try:
            await self._seal_in_epoch(range_id, role)
        except NotReadyError:  # the broker stops
            return
        finally:
            self._under_way.discard(range_id)
        state = self._ring.state
        assert state is not None
        self.apply(state)  # another step may have begun in the turn that has ended this one

    async def _seal_in_epoch(self, range_id: int, role: RangeRole) -> None:
        epoch, began_s = role.epoch, self._loop.time()
        assert epoch is not None
        since_s = held_s = began_s
        limit_s = self._timing.step_wait_ms / 1000
        while (step := self._open_step(range_id, role, epoch)) is not None:
            if not role.is_held and self._may_hold(step):
                _log.info("range.held", range=range_id, epoch=epoch)
                role.hold()
                since_s = held_s = self._loop.time()
                limit_s = self._timing.step_ms / 1000
            if self._loop.time() - since_s >= limit_s:
                await self._propose(
                    AbortStep(step.id, range_id, NOT_STORED if role.is_held else NOT_HELD)
                )
            elif role.is_held and not step.is_reported:
                ends = self._durable_ends(step)
                if ends is not None:
                    mine = self._ring.registration
                    assert mine is not None
                    heard = {mine.ordinal, *self._ring.peer_view().heard}
                    held_after_ms = round((held_s - began_s) * 1000)
                    await self._propose(step.sealed(range_id, epoch, ends, heard, held_after_ms))
            await asyncio.sleep(CHECK_SECONDS)
        if role.is_held and role.epoch == epoch:
            await lead_in_next_epoch(self._ring, role, range_id, epoch)

    def _open_step(self, range_id: int, role: RangeRole, epoch: int) -> OpenStep | None:
        state = self._ring.state
        assert state is not None
        return open_step(state, range_id) if role.epoch == epoch else None

    def _may_hold(self, step: OpenStep) -> bool:
        mine = self._ring.registration
        heard = {mine.ordinal, *self._ring.peer_view().heard} if mine is not None else set[int]()
        return step.are_heard(heard) and all(map(self._whole_log, _live(step)))

    def _whole_log(self, key: LogKey) -> PartitionLog | None:
        """None: it is not open, or its end is lost."""
        log = self._log_of(key)
        return None if log is None or log.lost_end is not None else log

    def _durable_ends(self, step: OpenStep) -> Mapping[LogKey, int] | None:
        """Of all logs that take events; None: something is still to be made durable."""
        ends: dict[LogKey, int] = {}
        for key in _live(step):
            log = self._whole_log(key)
            if log is None or log.is_writing or log.durable_end < log.log_end:
                return None
            ends[key] = log.log_end
        return ends

    async def _propose(self, command: Sealed | AbortStep) -> None:
        try:
            await self._ring.change(command)
        except NotReadyError:
            raise
        except TailraceError as error:
            _log.info("step.refused", command=type(command).__name__, detail=error.detail)
            await asyncio.sleep(PROPOSE_SECONDS)


def _live(step: OpenStep) -> Iterable[LogKey]:
    """Of a topic in the trash no log is open, and no end is reported."""
    return chain.from_iterable(step.live.values())
