"""Retention of sealed ranges: brokers decide now and then, and holders remove what is committed.

Who decides, what is asked for and what the state makes of it is shipped. When a broker looks, what
is old there, and the removal are the model's.
"""

import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tailrace_broker.core.ring.sealed_retention import decider_of, decision
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Partition
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.ring.data.host import Logs
    from tests.simulation.ring.data.replicas import Replicas
    from tests.simulation.ring.process import Process

LOOKS = 0.1  # at a range that a process decides for
TAKES_ALL = 0.5


class SealedRetention:
    """`_led_starts`: where logs began at most by what their leaders have removed."""

    def __init__(self, replicas: "Replicas", generator: random.Random) -> None:
        self._replicas = replicas
        self._random = generator
        self._led_starts: dict[LogKey, int] = {}
        self._seen: RingState | None = None

    def moved_start(self, key: LogKey, start: int) -> None:
        """A leader has; the range may be sealed already, and it does not know yet."""
        self._led_starts[key] = max(start, self._led_starts.get(key, 0))

    def decide(self, process: "Process") -> None:
        """Ask for what this process would remove, for the ranges for which it decides."""
        control = process.control
        if control is None or control.state is None or control.registration is None:
            return
        state, mine, shell = control.state, control.registration, process.shell
        assert shell is not None
        for held in state.ranges.values():
            if not held.is_sealed or decider_of(state, held) != mine.ordinal:
                continue
            if self._random.random() < LOOKS:
                start_of = partial(self._start_of, shell.host.logs)
                command = decision(state, held, mine, start_of, lambda _: True)
                if command is not None:
                    self._replicas.request += 1
                    request = partial(process.ask, self._replicas.request, command)
                    self._replicas.world.schedule.after(1, request)

    def remove(self, ordinal: int, logs: "Logs", state: RingState) -> None:
        """What holders do with a state that they have applied."""
        for key, partition in _sealed(state):
            log = logs.get(key)
            is_whole = ordinal in state.ranges[partition.range_id].complete
            if log is not None and is_whole and log.end == partition.sealed_end:
                log.seal()
                start = self.start_at(log.start, partition)
                if start > log.start:
                    self._replicas.counts["sealed log trimmed"] += 1
                    log.set_start(start)
        topics = {each.id: topic_of(state, each) for each in state.topics.values()}
        for key in [*logs]:
            topic = topics.get(key.topic_id)
            if topic is None or topic.find(key.partition) is not None:
                continue
            if key.partition < topic.partitions[-1].partition:
                self._replicas.counts["partition removed"] += 1
                del logs[key]

    def start_at(self, start: int, partition: Partition) -> int:
        """Where a whole copy that begins at `start` is to begin."""
        return start if partition.log_start is None else partition.log_start

    def check(self) -> None:
        """No whole copy has less than its leaders have left, and the ring has decided."""
        state = self._replicas.state
        if state is self._seen:
            return
        self._seen = state
        for key, partition in _sealed(state):
            for ordinal in state.ranges[partition.range_id].complete:
                log = (self._replicas.logs_of(ordinal) or {}).get(key)
                if log is None:
                    continue
                led = max(partition.first_offset, self._led_starts.get(key, 0))
                least = max(led, partition.log_start or 0)
                check(
                    log.start <= least,
                    f"5: broker {ordinal} has removed {key} up to {log.start}, and the ring has "
                    f"decided {least}",
                )

    def _start_of(self, logs: "Logs", key: LogKey) -> int | None:
        log = logs.get(key)
        if log is None:
            return None
        takes_all = self._random.random() < TAKES_ALL
        return log.end if takes_all else self._random.randint(log.start, log.end)


def _sealed(state: RingState) -> Iterator[tuple[LogKey, Partition]]:
    for topic in state.topics.values():
        if any(slices.sealed_ends for slices in topic.slices):
            for partition in topic_of(state, topic).partitions:
                if partition.is_sealed:
                    yield LogKey(topic.id, partition.partition), partition
