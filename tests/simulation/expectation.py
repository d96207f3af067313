"""What a broker has promised, and whether what it serves after a crash keeps that.

Promises are noted with their time, so that any moment of the past can be crashed into: what holds
then is made of the notes up to that moment.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tailrace_broker.core.log.producers import Producer
from tests.simulation.world import Violation

# How the values begin of which the same may be sent in several lives.
RETRIED = b"retried:"

# A topic's name, which is used once, and a partition.
LogKey = tuple[str, int]


class FoundBatch(NamedTuple):
    """A batch that a broker serves."""

    base_offset: int
    epoch: int
    previous_epoch: int
    values: list[bytes]


class FoundLog(NamedTuple):
    """A log that a broker serves, read from its start to its end."""

    log_start: int
    batches: list[FoundBatch]
    damaged: tuple[range, ...] = ()  # offsets that cannot be read, as readers are reported

    @property
    def end_offset(self) -> int:
        """Of all that is served, or damaged."""
        return self.log_start + len(self.values) + sum(map(len, self.damaged))

    @property
    def values(self) -> dict[int, bytes]:
        """By offset."""
        return {
            offset: value
            for batch in self.batches
            for offset, value in enumerate(batch.values, start=batch.base_offset)
        }


@dataclass(slots=True)
class Request:
    """What a producer sent under a sequence, to be stored once however often it is sent again."""

    key: LogKey
    values: list[bytes]
    offset: int | None = None  # that it was reported


@dataclass(slots=True)
class ExpectedLog:
    """What is known of a log; ends are exclusive."""

    is_fsync: bool
    values: dict[int, bytes] = field(default_factory=dict)  # that somebody was reported, by offset
    sent: list[bytes] = field(default_factory=list)  # and not in `values` when the broker started
    reported_end: int = 0  # below it everything survives the process
    written_end: int = 0  # below it nothing was promised to be durable when it was reported
    safe_end: int = 0  # below it everything survives a loss of power
    log_start: int = 0
    log_start_max: int = 0  # a trim to here has begun
    is_trimmed: bool = False  # retention may trim it at any time


@dataclass(slots=True)
class Expectation:
    """All logs. Each method notes one thing that was asked, or reported."""

    logs: dict[LogKey, ExpectedLog] = field(default_factory=dict)
    requests: dict[Producer, Request] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)  # that must be there
    unsettled: set[str] = field(default_factory=set)  # that are being created or deleted

    def creating(
        self, topic: str, partition_count: int, *, is_fsync: bool, is_trimmed: bool
    ) -> None:
        """A topic may be there from now on."""
        self.unsettled.add(topic)
        for partition in range(partition_count):
            self.logs[topic, partition] = ExpectedLog(is_fsync, is_trimmed=is_trimmed)

    def created(self, topic: str) -> None:
        """It is there."""
        self.unsettled.discard(topic)
        self.topics.add(topic)

    def deleting(self, topic: str) -> None:
        """It may be gone from now on."""
        self.unsettled.add(topic)
        self.topics.discard(topic)

    def deleted(self, topic: str) -> None:
        """It is gone."""
        self.unsettled.discard(topic)

    def sent(self, key: LogKey, values: list[bytes]) -> None:
        """They may be there from now on."""
        self.logs[key].sent += values

    def requested(self, producer: Producer, key: LogKey, values: list[bytes]) -> None:
        """By a producer that sends it again when it gets no answer."""
        self.requests[producer] = Request(key, values)

    def answered(self, producer: Producer, offset: int) -> None:
        """It is stored, for the first time or not."""
        request = self.requests[producer]
        if request.offset not in (None, offset):
            raise Violation(f"{request.key}: {producer} is at {request.offset} and at {offset}")
        request.offset = offset

    def reported(self, key: LogKey, offset: int, values: list[bytes]) -> None:
        """A producer or a reader was reported that they are there."""
        log = self.logs[key]
        for each, value in enumerate(values, start=offset):
            if log.values.setdefault(each, value) != value:
                raise Violation(f"{key}: offset {each} has two records")
        log.reported_end = max(log.reported_end, offset + len(values))
        if log.is_fsync and offset + len(values) > log.written_end:
            log.safe_end = log.reported_end

    def altered(self, topic: str, *, is_fsync: bool) -> None:
        """What is distinguished from now on is durable, or is not."""
        for (name, _), log in self.logs.items():
            if name == topic:
                if not log.is_fsync:
                    log.written_end = log.reported_end
                log.is_fsync = is_fsync

    def flushed(self, key: LogKey, end_offset: int) -> None:
        """The time has passed in which an unflushed tail may be lost."""
        self.logs[key].safe_end = max(self.logs[key].safe_end, end_offset)

    def trimming(self, key: LogKey, log_start: int) -> None:
        """Records below may be gone from now on."""
        self.logs[key].log_start_max = max(self.logs[key].log_start_max, log_start)

    def trimmed(self, key: LogKey, log_start: int) -> None:
        """They are."""
        self.logs[key].log_start = max(self.logs[key].log_start, log_start)

    def booted(self, found: dict[LogKey, FoundLog], *, lost_power: bool) -> None:
        """A broker has recovered this: what it has not, is never to appear again."""
        names = {topic for topic, _ in found}
        self.topics, self.unsettled = names, set()
        for key, log in found.items():
            values = log.values
            end_offset = log.log_start + len(values)
            before = self.logs[key]
            expected = ExpectedLog(before.is_fsync, values, reported_end=end_offset)
            expected.is_trimmed = before.is_trimmed
            expected.log_start = expected.log_start_max = log.log_start
            if expected.is_fsync or lost_power:
                expected.safe_end = end_offset
            else:
                expected.safe_end = before.safe_end
            self.logs[key] = expected
        for request in self.requests.values():
            log_end = self.logs[request.key].reported_end
            if request.offset is not None and request.offset >= log_end:
                request.offset = None  # lost, as an unflushed tail may be

    def all_stopped(self) -> None:
        """The broker has stopped cleanly: nothing is unflushed."""
        for log in self.logs.values():
            log.safe_end = log.reported_end

    def check(self, found: dict[LogKey, FoundLog], *, lost_power: bool) -> None:
        """Violation says what a recovered broker has lost, moved, or made up."""
        names = {topic for topic, _ in found}
        if missing := self.topics - names:
            raise Violation(f"topics are gone: {sorted(missing)}")
        if extra := names - self.topics - self.unsettled:
            raise Violation(f"topics came back: {sorted(extra)}")
        for key, log in found.items():
            _check_log(key, self.logs[key], log, lost_power=lost_power)


class History:
    """Notes in the order of their times, on top of what held before."""

    def __init__(self, tick: Callable[[], int], before: Expectation | None = None) -> None:
        """`tick` tells the time of what happens now."""
        self._before = before or Expectation()
        self._tick = tick
        self._notes: list[tuple[int, Callable[[Expectation], None]]] = []

    def note(self, method: Callable[..., None], *args: Any, **options: Any) -> None:
        """Of `Expectation`."""
        self._notes.append((self._tick(), lambda each: method(each, *args, **options)))

    def at(self, time: int | None = None) -> Expectation:
        """What holds at a time, or now."""
        expectation = deepcopy(self._before)
        for noted, change in self._notes:
            if time is not None and noted > time:
                break
            change(expectation)
        return expectation


def _check_log(key: LogKey, expected: ExpectedLog, found: FoundLog, *, lost_power: bool) -> None:
    fail = partial(_fail, key)
    _check_batches(found, fail)
    values = found.values
    end_offset = found.end_offset
    log_start_max = max(expected.log_start_max, expected.reported_end * expected.is_trimmed)
    if not expected.log_start <= found.log_start <= log_start_max:
        fail(f"starts at {found.log_start}, not in {expected.log_start, log_start_max}")
    for offset, value in values.items():
        if expected.values.get(offset, value) != value:
            fail(f"offset {offset} has another record: {value[:16]!r}")
    if len(set(values.values())) < len(values):
        fail("a record is there twice")
    kept_end = expected.safe_end if lost_power else expected.reported_end
    if end_offset < kept_end:
        fail(f"ends at {end_offset}, reported was {kept_end}")
    _check_unknown(
        [value for offset, value in values.items() if offset not in expected.values],
        expected.sent,
        fail,
    )


def _check_batches(found: FoundLog, fail: Callable[[str], None]) -> None:
    """Offsets are dense but for damage, epochs never fall, each is of one life of the broker."""
    offset, epoch = found.log_start, None
    behind_damage = {each.start: each.stop for each in found.damaged}
    life_of_epoch: dict[int, bytes] = {}
    for batch in found.batches:
        while offset in behind_damage:
            offset, epoch = behind_damage[offset], None
        if batch.base_offset != offset:
            fail(f"a batch starts at {batch.base_offset}, not at {offset}")
        if epoch is not None and not batch.previous_epoch == epoch <= batch.epoch:
            fail(f"offset {offset}: epoch {batch.epoch} after {epoch}")
        for value in batch.values:
            if value.startswith(RETRIED):
                continue  # it may have been sent again in a later life
            if life_of_epoch.setdefault(batch.epoch, life_of(value)) != life_of(value):
                fail(f"offset {offset}: epoch {batch.epoch} has two lives")
        offset, epoch = offset + len(batch.values), batch.epoch


def _check_unknown(
    unknown: Iterable[bytes], sent: list[bytes], fail: Callable[[str], None]
) -> None:
    """Records that nobody was reported of were sent, and have the order in which they were."""
    rest = iter(sent)
    for value in unknown:
        if value not in rest:
            fail(f"a record is not where it may be: {value[:16]!r}")


def life_of(value: bytes) -> bytes:
    """The life of the broker in which a value was sent."""
    return value.partition(b":")[0]


def _fail(key: LogKey, detail: str) -> None:
    raise Violation(f"{key[0]}-{key[1]}: {detail}")
