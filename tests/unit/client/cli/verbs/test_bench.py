"""The parts of `tailrace bench` that need no broker."""

import json
from collections.abc import Callable
from threading import Event

import pytest

from tailrace.cli.lib.bench_phases import Limit, Phase, Quota, event, in_threads, record_count
from tailrace.cli.verbs import bench
from tailrace.cli.verbs.bench import request_events
from tailrace.wire import HEADER, HEADER_BYTES, BatchHeader

FOREVER_S = 3_600.0


def batch(partition: int, base_offset: int, count: int, payload_bytes: int) -> bytes:
    """A header, and zeros in place of the payload."""
    fields = [0] * 20
    fields[5], fields[8], fields[9], fields[12] = payload_bytes, count, base_offset, partition
    values: list[object] = [*fields]
    values[10] = bytes(16)
    return HEADER.pack(*values).ljust(BatchHeader._make(values).batch_bytes, b"\0")


@pytest.mark.parametrize("size_bytes", [32, 33, 256, 1_048_576])
@pytest.mark.parametrize("number", [0, 9_999_999_999])
def test_an_event_is_json_of_its_size(number: int, size_bytes: int) -> None:
    made = event(number, size_bytes)

    assert len(made) == size_bytes
    assert json.loads(made)["n"] == number


def test_the_least_size_is_the_one_that_events_can_have() -> None:
    assert len(event(2**31, bench.EVENT_BYTES_MIN)) == bench.EVENT_BYTES_MIN


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(32, 2_048), (256, 256), (65_536, 1), (1_048_576, 1)]
)
def test_a_request_has_events_of_64_kib_and_one_at_least(size_bytes: int, count: int) -> None:
    assert request_events(size_bytes) == count


def test_records_are_counted_from_where_they_are_new() -> None:
    body = batch(0, 10, 5, 100) + batch(1, 0, 3, 0) + batch(0, 15, 2, 1)

    assert record_count(body, {}) == 10
    assert record_count(body, {0: 12}) == 8
    assert record_count(b"", {}) == 0
    assert len(batch(0, 0, 1, 0)) == HEADER_BYTES


@pytest.mark.parametrize(
    ("latencies", "p50", "p99"),
    [((), None, None), ((1.0,), 1.0, 1.0), (tuple(map(float, range(1, 101))), 50.0, 99.0)],
)
def test_percentiles_are_latencies_that_were_measured(
    latencies: tuple[float, ...], p50: float | None, p99: float | None
) -> None:
    phase = Phase("produce", 1, 1, 1.0, 1, latencies)

    assert (phase.percentile(50), phase.percentile(99)) == (p50, p99)


def test_a_quota_gives_what_is_left() -> None:
    quota = Quota(5)

    assert [quota.take(3), quota.take(3), quota.take(3)] == [3, 2, 0]
    assert quota.is_used_up
    assert Quota(None).take(3) == 3
    assert not Quota(None).is_used_up


def test_a_limit_is_over_in_time_or_when_it_is_ended() -> None:
    limit = Limit(FOREVER_S)
    was_over = limit.is_over()
    limit.end()

    assert (was_over, limit.is_over(), Limit(0).is_over()) == (False, True, True)


def test_threads_give_their_results_in_order() -> None:
    works: list[Callable[[], int]] = [lambda: 1, lambda: 2]

    assert in_threads(works, Limit(FOREVER_S)) == [1, 2]


def test_an_error_in_a_thread_ends_the_others() -> None:
    limit = Limit(FOREVER_S)
    has_begun = Event()

    def wait() -> None:
        has_begun.set()
        while not limit.is_over():
            pass

    def fail() -> None:
        has_begun.wait()
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        in_threads([wait, fail], limit)
