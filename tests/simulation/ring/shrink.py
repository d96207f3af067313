"""Leaves out of a story that fails what it fails without."""

from collections.abc import Callable

from tests.simulation.ring.story import Story

TRIES_MAX = 400


def until(story: Story, end_ms: int) -> Story:
    """Without what comes later."""
    happenings = tuple(each for each in story.happenings if each.at_ms <= end_ms)
    return story._replace(happenings=happenings)


def shrink(story: Story, fails: Callable[[Story], bool]) -> Story:
    """Halves first, then smaller parts, as long as something can go (delta debugging)."""
    tries = 0
    part_count = 2
    happenings = list(story.happenings)
    while len(happenings) >= 2 and tries < TRIES_MAX:
        size = -(-len(happenings) // part_count)
        for start in range(0, len(happenings), size):
            tries += 1
            without = happenings[:start] + happenings[start + size :]
            if fails(story._replace(happenings=tuple(without))):
                happenings = without
                part_count = max(2, part_count - 1)
                break
        else:
            if part_count >= len(happenings):
                break
            part_count = min(len(happenings), part_count * 2)
    return story._replace(happenings=tuple(happenings))
