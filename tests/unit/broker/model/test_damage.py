"""What is recorded of a log's damage, and what a cut leaves of it."""

import pytest

from tailrace_broker.model.damage import Loss, RecordedDamage

KNOWN = RecordedDamage(90, 95, (Loss(10, 20), Loss(40, 50)))


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (90, KNOWN),
        (99, KNOWN),
        (60, RecordedDamage(60, 0, KNOWN.losses)),
        (30, RecordedDamage(30, 0, (Loss(10, 20),))),
        (0, RecordedDamage()),
    ],
)
def test_a_cut_log_was_durable_to_its_end_at_most(end: int, left: RecordedDamage) -> None:
    assert KNOWN.cut(end) == left
