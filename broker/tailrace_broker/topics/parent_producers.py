"""What sealed partitions remember of their producers: asked for their children, and answered.

A sealed log never changes, so any whole copy of it will do: the one here, or another broker's.
"""

import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.codec.producers import Checkpoint, decode_checkpoint, encode_checkpoint
from tailrace_broker.core.log.parent_windows import AncestorWindows, ParentWindows
from tailrace_broker.core.log.producers import WindowLimits
from tailrace_broker.core.ring.origins import masks_between
from tailrace_broker.model.damage import given_up
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    NotReadyError,
    TailraceError,
)
from tailrace_broker.model.topic import Topic
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import HostedTopic

_FIRST_APPEND = struct.Struct("<q")
_AGE_US = WindowLimits().age_us


class _Remembered(NamedTuple):
    """`first_append_us`: of the first batch that is there; 0: there is none."""

    first_append_us: int
    checkpoint: Checkpoint


class ParentProducers:
    """`ask`: what that broker answers for a partition; TailraceError."""

    def __init__(
        self,
        ordinal: int,
        ring: RingNode,
        hosted_of: Callable[[UUID], HostedTopic | None],
        now_us: Callable[[], int],
        is_time_sure: Callable[[PartitionLog], bool],
    ) -> None:
        """`now_us`: a clock that others have set the times of appends by, as far as it is sure."""
        self.ask: Callable[[int, bytes], Awaitable[bytes]] = _nobody
        self._ordinal = ordinal
        self._ring = ring
        self._hosted_of = hosted_of
        self._now_us = now_us
        self._is_time_sure = is_time_sure

    async def load(self, topic_id: UUID, partition: int) -> ParentWindows:
        """What a partition must know of its ancestors. NotReadyError: somebody does not answer."""
        hosted = self._hosted_of(topic_id)
        log = None if hosted is None else hosted.logs.get(partition)
        if hosted is None or not isinstance(log, PartitionLog):
            raise NotReadyError("the partition is not open")
        found: list[AncestorWindows] = []
        if not self._is_old(log, await _first_append_us(log)):
            topic = hosted.topic
            child = topic.at(partition)
            waiting, seen = [*child.parents], set[int]()
            while waiting:
                parent = topic.find(waiting.pop())
                if parent is None or parent.partition in seen:  # no record of it is left
                    continue
                seen.add(parent.partition)
                remembered = await self._remembered(hosted, parent.partition)
                masks, producers = masks_between(parent, child), remembered.checkpoint.producers
                found.append(AncestorWindows(parent.partition, masks, producers))
                if not self._is_old(log, remembered.first_append_us):
                    waiting += parent.parents
        return ParentWindows(found)

    async def answer(self, target: bytes) -> bytes:
        """Answer another broker. NotReadyError."""
        topic_id, _, partition = target.decode().partition("/")
        hosted = self._hosted_of(UUID(topic_id))
        remembered = None if hosted is None else await self._here(hosted, int(partition))
        if remembered is None:
            raise NotReadyError("this broker has no whole copy of the sealed partition")
        first_append_us, checkpoint = remembered
        return _FIRST_APPEND.pack(first_append_us) + encode_checkpoint(checkpoint)

    def _is_old(self, log: PartitionLog, first_append_us: int) -> bool:
        """Whether all before it is surely too old to be remembered."""
        return 0 < first_append_us < self._now_us() - _AGE_US and self._is_time_sure(log)

    async def _remembered(self, hosted: HostedTopic, partition: int) -> _Remembered:
        here = await self._here(hosted, partition)
        if here is not None:
            return here
        target = f"{hosted.topic.topic_id}/{partition}".encode()
        failure: TailraceError = NotReadyError("no broker has a whole copy of the partition")
        for ordinal in self._others(hosted.topic, partition):
            try:
                answer = await self.ask(ordinal, target)
                (first_append_us,) = _FIRST_APPEND.unpack_from(answer)
                checkpoint = decode_checkpoint(answer[_FIRST_APPEND.size :])
            except TailraceError as error:
                failure = error
            except (struct.error, CorruptBatchError):
                failure = NotReadyError(f"broker {ordinal} answers something else")
            else:
                return _Remembered(first_append_us, checkpoint)
        raise failure

    def _others(self, topic: Topic, partition: int) -> list[int]:
        """Brokers with a whole copy, those that live first."""
        state = self._ring.state
        found = topic.find(partition)
        owner = None if state is None or found is None else state.ranges.get(found.range_id)
        if state is None or owner is None:
            return []
        there = [each for each in owner.holders if each in state.brokers]
        return sorted(
            (each for each in there if each != self._ordinal),
            key=lambda each: state.brokers[each].is_fenced,
        )

    async def _here(self, hosted: HostedTopic, partition: int) -> _Remembered | None:
        """None: there is no whole copy here."""
        known = hosted.topic.find(partition)
        if known is None or not known.is_sealed:
            return None
        log = hosted.logs[partition]
        if not isinstance(log, PartitionLog) or not log.is_served or log.lost_end is not None:
            return None
        return _Remembered(await _first_append_us(log), log.producers())


async def _first_append_us(log: PartitionLog) -> int:
    """0: there is none, or it is lost."""
    if log.log_start == log.log_end:
        return 0
    try:
        batches = await log.read_written(log.log_start, 1)
    except CorruptPartitionError as error:
        if given_up(error) is None:
            raise
        return 0
    return batches[0].header.append_time_us


async def _nobody(_: int, __: bytes) -> bytes:
    raise NotReadyError("there is no other broker")
