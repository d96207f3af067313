import pytest

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.retention import RetentionPlan, plan_retention

SECOND_US = 1_000_000
# Two finished segments and the one that takes writes: appended at 10, 20 and 30 s, 100 bytes each.
LOG = [
    SegmentState(0, 5, last_append_time_us=10 * SECOND_US, position=100),
    SegmentState(5, 9, last_append_time_us=20 * SECOND_US, position=100),
    SegmentState(9, 12, last_append_time_us=30 * SECOND_US, position=100),
]
NOTHING_SINCE = [*LOG[:2], SegmentState(9, 9, last_append_time_us=20 * SECOND_US)]


def plan(
    segments: list[SegmentState] = LOG,
    *,
    ms: int | None = None,
    size_bytes: int | None = None,
    start: int = 0,
    mark: int = 12,
    now_s: float = 30,
) -> RetentionPlan:
    return plan_retention(
        segments,
        retention_ms=ms,
        retention_bytes=size_bytes,
        log_start=start,
        high_watermark=mark,
        now_us=int(now_s * SECOND_US),
    )


def test_without_bounds_all_is_kept_for_ever() -> None:
    assert plan(now_s=10**9) == RetentionPlan(None, None)


@pytest.mark.parametrize(
    ("now_s", "log_start", "look_at_s"),
    [(30, None, 35), (34.9, None, 35), (35, 5, 45), (45, 9, 55), (54.9, 9, 55), (55, 12, 80)],
)
def test_a_segment_goes_when_its_last_record_is_old_enough(
    now_s: float, log_start: int | None, look_at_s: int
) -> None:
    """The last one too, which takes writes: the log is then empty."""
    assert plan(ms=25_000, now_s=now_s) == RetentionPlan(log_start, look_at_s * SECOND_US)


@pytest.mark.parametrize(
    ("size_bytes", "log_start"),
    [(301, None), (300, None), (201, None), (200, 5), (101, 5), (100, 9), (1, 9), (0, 9)],
)
def test_finished_segments_go_while_enough_bytes_are_left(
    size_bytes: int, log_start: int | None
) -> None:
    assert plan(size_bytes=size_bytes) == RetentionPlan(log_start, None)


def test_what_either_bound_lets_go_goes() -> None:
    assert plan(ms=25_000, size_bytes=100, now_s=35) == RetentionPlan(9, 55 * SECOND_US)
    assert plan(ms=5_000, size_bytes=200, now_s=30) == RetentionPlan(9, 35 * SECOND_US)


def test_what_went_already_does_not_count() -> None:
    assert plan(size_bytes=200, start=5) == RetentionPlan(None, None)
    assert plan(ms=25_000, start=5, now_s=35) == RetentionPlan(None, 45 * SECOND_US)
    assert plan(ms=1_000, start=12, now_s=99) == RetentionPlan(None, 100 * SECOND_US)


def test_a_log_without_a_record_is_looked_at_as_seldom_as_can_be() -> None:
    empty = [SegmentState(0, 0)]
    assert plan(empty, ms=25_000, mark=0) == RetentionPlan(None, 55 * SECOND_US)
    assert plan(NOTHING_SINCE, ms=5_000, mark=9) == RetentionPlan(9, 35 * SECOND_US)


def test_nothing_above_the_high_watermark_goes() -> None:
    assert plan(ms=1, size_bytes=0, mark=8, now_s=99) == RetentionPlan(5, 99_001_000)
    assert plan(ms=1, size_bytes=0, mark=4, now_s=99) == RetentionPlan(None, 99_001_000)


def test_a_clock_behind_the_newest_record_makes_nothing_old() -> None:
    assert plan(ms=1_000, now_s=29.9) == RetentionPlan(None, int(30.9 * SECOND_US))
    assert plan(ms=1_000, now_s=0) == RetentionPlan(None, 11 * SECOND_US)
    assert plan(ms=1_000, size_bytes=200, now_s=29.9).log_start == 5, "size is no matter of time"


def test_what_cannot_be_read_is_no_older_than_what_follows_it() -> None:
    """All batches of a segment are quarantined: nothing says when they were appended."""
    unread = SegmentState(0, 5, position=100)

    assert plan([unread, SegmentState(5, 5)], ms=1, mark=5).log_start is None
    assert plan([unread, *LOG[1:]], ms=10_000, now_s=29).log_start is None
    assert plan([unread, *LOG[1:]], ms=10_000, now_s=30).log_start == 9
