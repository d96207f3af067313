"""Leaves out of a scenario that fails what it fails without."""

from collections.abc import Callable

from tests.simulation.ring.scenario import Scenario

TRIES_MAX = 400


def until(scenario: Scenario, end_ms: int) -> Scenario:
    """Without what comes later."""
    happenings = tuple(each for each in scenario.happenings if each.at_ms <= end_ms)
    return scenario._replace(happenings=happenings)


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Halves first, then smaller parts, as long as something can go (delta debugging)."""
    tries = 0
    part_count = 2
    happenings = list(scenario.happenings)
    while len(happenings) >= 2 and tries < TRIES_MAX:
        size = -(-len(happenings) // part_count)
        for start in range(0, len(happenings), size):
            tries += 1
            without = happenings[:start] + happenings[start + size :]
            if fails(scenario._replace(happenings=tuple(without))):
                happenings = without
                part_count = max(2, part_count - 1)
                break
        else:
            if part_count >= len(happenings):
                break
            part_count = min(len(happenings), part_count * 2)
    return scenario._replace(happenings=tuple(happenings))
