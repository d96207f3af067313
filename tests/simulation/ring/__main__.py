"""`python -m tests.simulation.ring`: whole rings under many seeds, on all cores.

`SEEDS=n FIRST=k`: so many, from that one on. `SEED=x`: this one, with its trace; with `SHRINK=1`
what it fails without is left out first.
"""

import sys

from tests.simulation.ring.many import report, tell_many
from tests.simulation.ring.shrink import shrink, until
from tests.simulation.ring.story import Story, make_story
from tests.simulation.ring.tale import tell
from tests.simulation.ring.trace import Trace
from tests.support.variables import WrongVariableError, is_on, whole_number

SEEDS_DEFAULT = 200
EXIT_USAGE = 2


def main() -> int:
    """0 when every promise was kept, 2 when a variable is wrong."""
    try:
        seed = whole_number("SEED", None, meaning="the one seed to tell, as in SEED=7")
        first = whole_number("FIRST", 0, meaning="the seed to begin with, as in FIRST=1000")
        count = whole_number(
            "SEEDS", SEEDS_DEFAULT, least=1, meaning="how many seeds to tell, as in SEEDS=200"
        )
        shrinks = is_on("SHRINK", meaning="to leave out what the story of SEED fails without")
        if shrinks and seed is None:
            raise WrongVariableError("SHRINK: it is for one story: give its SEED, as in SEED=7")
    except WrongVariableError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    if seed is not None:
        return _tell_one(seed, shrinks=shrinks)
    told = tell_many(range(first, first + count))
    print("\n".join(report(told)))
    return int(any(outcome.failure for outcome in told.outcomes))


def _tell_one(seed: int, *, shrinks: bool) -> int:
    story = make_story(seed)
    if shrinks:
        failed = tell(story)
        if failed.failure is not None:
            story = shrink(until(story, failed.virtual_ms), _fails)
    trace = Trace(is_on=True)
    outcome = tell(story, trace)
    print("\n".join(trace.lines))
    ring = f"{story.broker_count} brokers, factor {story.factor}, {story.weather}"
    print(f"seed {seed}: {ring}, {len(story.happenings)} events")
    if shrinks:
        print("\n".join(f"  {happening}" for happening in story.happenings))
    print(outcome.failure or "every promise was kept")
    return int(outcome.failure is not None)


def _fails(story: Story) -> bool:
    return tell(story).failure is not None


if __name__ == "__main__":
    sys.exit(main())
