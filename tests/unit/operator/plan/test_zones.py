"""Where brokers belong: `docs/ring.md`, "Copies and zones"."""

import pytest

from tailrace_broker.core.ring import arithmetic as ring
from tailrace_operator.plan.zones import is_balanced, zone_class, zone_of


def test_the_first_twelve_brokers_have_the_classes_of_the_documentation() -> None:
    assert [zone_class(ordinal) for ordinal in range(12)] == [0, 1, 2, 2, 0, 1, 1, 0, 2, 1, 0, 2]


def test_the_brokers_of_the_largest_ring_have_the_classes_that_the_brokers_know() -> None:
    ordinals = range(ring.UNITS)

    assert [*map(zone_class, ordinals)] == [*map(ring.zone_class, ordinals)]


def test_each_class_is_a_zone() -> None:
    assert [zone_of(ordinal, ("a", "b", "c")) for ordinal in range(4)] == ["a", "b", "c", "c"]


@pytest.mark.parametrize("broker_count", [1, 3, 6, 12, 24, 12288])
def test_a_ring_of_one_and_every_doubling_of_three_are_balanced(broker_count: int) -> None:
    assert is_balanced(broker_count)


@pytest.mark.parametrize("broker_count", [2, 4, 5, 9, 18, 12287])
def test_rings_in_between_are_not(broker_count: int) -> None:
    assert not is_balanced(broker_count)
