"""What no plan may do, over any log, bounds and clock."""

from itertools import accumulate
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.retention import RetentionPlan, plan_retention

TIME_MS_MAX = 1_000


class Case(NamedTuple):
    """A log, its bounds and a clock."""

    segments: list[SegmentState]
    retention_ms: int | None
    retention_bytes: int | None
    log_start: int
    high_watermark: int
    now_us: int

    def plan(self) -> RetentionPlan:
        return plan_retention(**self._asdict())

    def trimmed(self) -> "Case":
        """The log when the plan was followed."""
        start = self.plan().log_start
        if start is None:
            return self
        left = [state for state in self.segments if state.end_offset > start]
        last = self.segments[-1]
        emptied = SegmentState(start, start, last_append_time_us=last.last_append_time_us)
        return self._replace(segments=left or [emptied], log_start=start)

    def gone(self) -> list[SegmentState]:
        """The segments that the plan lets go."""
        start = self.plan().log_start or 0
        return [each for each in self.segments if each.base_offset < each.end_offset <= start]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 6))
    steps = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    if draw(st.booleans()):
        steps[-1] = 0  # nothing in the one that takes writes
    ends = list(accumulate(steps))
    waits_ms = draw(st.lists(st.integers(0, TIME_MS_MAX // 4), min_size=count, max_size=count))
    if not steps[-1]:
        waits_ms[-1] = 0
    segments = [
        SegmentState(
            end - step,
            end,
            last_append_time_us=time_ms * 1000,
            position=draw(st.integers(1, 100)) if step else 0,
        )
        for step, end, time_ms in zip(steps, ends, accumulate(waits_ms), strict=True)
    ]
    return Case(
        segments,
        draw(st.none() | st.integers(1, TIME_MS_MAX)),
        draw(st.none() | st.integers(0, 400)),
        log_start=0,
        high_watermark=draw(st.integers(0, ends[-1]) | st.just(ends[-1])),
        now_us=draw(st.integers(0, 2 * TIME_MS_MAX)) * 1000,
    )


@given(cases())
def test_only_whole_segments_below_the_high_watermark_go(case: Case) -> None:
    start = case.plan().log_start
    if start is not None:
        assert start in [each.end_offset for each in case.segments]
        assert case.log_start < start <= case.high_watermark


@given(cases())
def test_nothing_goes_that_is_young_and_needed(case: Case) -> None:
    *finished, last = case.segments
    for state in case.gone():
        left_bytes = sum(
            each.position for each in case.segments if each.base_offset >= state.end_offset
        )
        is_old = (
            case.retention_ms is not None
            and case.now_us >= last.last_append_time_us
            and case.now_us - state.last_append_time_us >= case.retention_ms * 1000
        )
        is_surplus = case.retention_bytes is not None and left_bytes >= case.retention_bytes
        assert is_old or (is_surplus and state in finished)


@given(cases())
def test_what_is_old_or_too_much_goes(case: Case) -> None:
    """The oldest segment that is kept is held by something."""
    left = case.trimmed()
    stored = [each for each in left.segments if each.end_offset > left.log_start]
    if not stored or stored[0].end_offset > case.high_watermark:
        return
    oldest, newest_us = stored[0], case.segments[-1].last_append_time_us
    if case.retention_ms is not None and case.now_us >= newest_us:
        assert case.now_us - oldest.last_append_time_us < case.retention_ms * 1000
    if case.retention_bytes is not None and len(left.segments) > 1:
        assert sum(each.position for each in stored[1:]) < case.retention_bytes


@given(cases())
def test_a_plan_that_was_followed_has_nothing_more_to_do(case: Case) -> None:
    again = case.trimmed().plan()

    assert again.log_start is None
    assert again.look_at_us == case.plan().look_at_us


@given(cases(), st.integers(0, TIME_MS_MAX))
def test_later_never_less_goes_and_never_before_it_is_time_to_look(case: Case, ms: int) -> None:
    later = case._replace(now_us=case.now_us + ms * 1000)
    assert (case.plan().log_start or 0) <= (later.plan().log_start or 0)
    look_at_us = case.plan().look_at_us
    assert (look_at_us is None) == (case.retention_ms is None)
    is_led = case.high_watermark == case.segments[-1].end_offset
    if look_at_us is None or (later.now_us < look_at_us and is_led and _is_true(case)):
        assert (later.plan().log_start or 0) == (case.plan().log_start or 0)


def _is_true(case: Case) -> bool:
    """Whether the clock is not behind the log."""
    return case.now_us >= case.segments[-1].last_append_time_us


@given(cases())
def test_there_is_always_something_to_wait_for(case: Case) -> None:
    look_at_us = case.plan().look_at_us
    assert look_at_us is None or look_at_us > case.now_us
