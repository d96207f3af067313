"""Producer windows against a plain model, and the same windows rebuilt from stored batches."""

from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import BatchHeader
from tailrace_broker.codec.producers import (
    TableEntry,
    decode_checkpoint,
    encode_checkpoint,
    encode_table,
)
from tailrace_broker.core.log.producers import (
    NOTHING,
    Duplicate,
    Producer,
    ProducerWindows,
    Verdict,
    WindowLimits,
)
from tailrace_broker.model.errors import SequenceUnknownError, TooManyProducersError

AGE_US = 10
IDS = [bytes([number]) * 16 for number in range(5)]
NO_HEADER = BatchHeader._make([0] * len(BatchHeader._fields))
# Tight enough that a few requests meet each of them.
TIGHT = WindowLimits(age_us=AGE_US, rows_per_producer=3, rows=5, producers=3)
BY_PRODUCER = WindowLimits(age_us=AGE_US, rows_per_producer=3)


class Request(NamedTuple):
    """One request, some time after the one before; a write that fails leaves nothing."""

    id: bytes
    sequence: int
    pause_us: int
    fails: bool


requests = st.lists(
    st.builds(Request, st.sampled_from(IDS), st.integers(0, 8), st.integers(0, 6), st.booleans()),
    max_size=40,
)


class Stored(NamedTuple):
    """One request that is in the log."""

    id: bytes
    sequence: int
    offset: int
    at_us: int


@dataclass(slots=True)
class Partition:
    """A log with its windows: each request is a batch of its own."""

    windows: ProducerWindows
    log: list[Stored]
    now_us: int = 0

    def verdict(self, request: Request) -> Verdict | Duplicate | type[Exception]:
        try:
            return self.windows.begin(Producer(request.id, request.sequence), 1, self.now_us)
        except (SequenceUnknownError, TooManyProducersError) as error:
            return type(error)

    def finish(self, request: Request) -> None:
        """End a new request's append."""
        if not request.fails:
            stored = Stored(request.id, request.sequence, len(self.log), self.now_us)
            self.log.append(stored)
            replay(self.windows, stored)
        self.windows.end(Producer(request.id, request.sequence))
        self.windows.validate()


def replay(windows: ProducerWindows, stored: Stored) -> None:
    header = NO_HEADER._replace(
        base_offset=stored.offset, append_time_us=stored.at_us, record_count=1
    )
    windows.replay(header, encode_table([TableEntry(stored.id, stored.sequence, 0, 1)]))


def expected(partition: Partition, request: Request) -> object:
    """By the log alone, when only the limits of one producer matter."""
    own = [stored for stored in partition.log if stored.id == request.id]
    end_us = partition.log[-1].at_us if partition.log else 0
    is_silent = bool(own) and own[-1].at_us <= end_us - AGE_US
    kept = [] if is_silent else [each for each in own[-3:] if each.at_us > own[-1].at_us - AGE_US]
    for stored in kept:
        if stored.sequence == request.sequence:
            is_old = stored.at_us <= partition.now_us - AGE_US
            return SequenceUnknownError if is_old else Duplicate(stored.offset)
    forgotten = max((each.sequence for each in own if each not in kept), default=-1)
    return SequenceUnknownError if request.sequence <= forgotten else Verdict.NEW


@given(requests)
def test_the_verdict_is_the_plain_model_s(given_requests: list[Request]) -> None:
    partition = Partition(ProducerWindows(limits=BY_PRODUCER), [])
    for request in given_requests:
        partition.now_us += request.pause_us
        wanted = expected(partition, request)
        found = partition.verdict(request)

        assert found == wanted
        if found is Verdict.NEW:
            partition.finish(request)


@given(requests)
def test_within_its_time_no_request_is_stored_twice_whatever_the_limits(
    given_requests: list[Request],
) -> None:
    partition = Partition(ProducerWindows(limits=TIGHT), [])
    for request in given_requests:
        partition.now_us += request.pause_us
        found = partition.verdict(request)
        stored = [each for each in partition.log if each[:2] == request[:2]]
        recent = [each for each in stored if each.at_us > partition.now_us - AGE_US]

        if found is Verdict.NEW:
            assert recent == []
            partition.finish(request)
        elif isinstance(found, Duplicate):
            assert found.offset == stored[-1].offset


@given(requests, st.integers(0, 40))
def test_the_log_s_tables_rebuild_the_windows_alone_or_behind_a_checkpoint(
    given_requests: list[Request], checkpoint_at: int
) -> None:
    live = Partition(ProducerWindows(limits=TIGHT), [])
    checkpoint = encode_checkpoint(NOTHING)
    for number, request in enumerate(given_requests):
        live.now_us += request.pause_us
        if live.verdict(request) is Verdict.NEW:
            live.finish(request)
        if number == checkpoint_at:
            checkpoint = encode_checkpoint(live.windows.checkpoint(len(live.log)))

    rebuilt = ProducerWindows(limits=TIGHT)
    resumed = ProducerWindows(decode_checkpoint(checkpoint), TIGHT)
    resumed.validate()
    for stored in live.log:
        replay(rebuilt, stored)
        replay(resumed, stored)  # what stands before the checkpoint changes nothing
    end_offset = len(live.log)
    wanted = live.windows.checkpoint(end_offset)
    assert rebuilt.checkpoint(end_offset) == resumed.checkpoint(end_offset) == wanted
