"""Whole rings under many seeds: every promise is kept, and a seed tells the same story again."""

import os
import subprocess
import sys

import pytest

from tests.simulation.ring.many import report, tell_many
from tests.simulation.ring.shrink import shrink
from tests.simulation.ring.story import make_story
from tests.simulation.ring.tale import tell
from tests.simulation.ring.trace import Trace

SEEDS = int(os.environ.get("SEEDS", "200" if os.environ.get("CI") else "40"))
FIRST = int(os.environ.get("FIRST", "0"))
SAME_SEED = 3
# Of a seed, on a slow and busy machine.
SECONDS_MAX = 6


@pytest.mark.timeout(300 + SECONDS_MAX * SEEDS)
def test_every_promise_is_kept() -> None:
    told = tell_many(range(FIRST, FIRST + SEEDS))

    assert [each.seed for each in told.outcomes if each.failure] == [], "\n".join(report(told))


@pytest.mark.timeout(300)
def test_a_seed_tells_the_same_story_again() -> None:
    traces = [Trace(is_on=True, has_gossip=True) for _ in range(2)]
    for trace in traces:
        tell(make_story(SAME_SEED), trace)

    assert len(traces[0].lines) > 1000
    assert traces[0].lines == traces[1].lines


@pytest.mark.timeout(300)
def test_a_seed_tells_the_same_story_whatever_the_hashes_of_strings_are() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.ring"],
            env={**os.environ, "SEED": str(SAME_SEED), "PYTHONHASHSEED": hashes},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]

    assert told[0] == told[1]


def test_what_a_story_fails_without_is_left_out() -> None:
    story = make_story(SAME_SEED)
    guilty = (story.happenings[5], story.happenings[40])

    shrunk = shrink(story, lambda tried: all(each in tried.happenings for each in guilty))

    assert shrunk.happenings == guilty
