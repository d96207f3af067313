"""`python -m tests.simulation.ring`: whole rings under many seeds, on all cores.

`SEEDS=n FIRST=k`: so many, from that one on. `SEED=x`: this one, with its trace; with `SHRINK=1`
what it fails without is left out first.
"""

import sys

from tests.simulation.ring.many import report, run_many, unneeded
from tests.simulation.ring.run import run
from tests.simulation.ring.scenario import Scenario, make_scenario
from tests.simulation.ring.shrink import shrink, until
from tests.simulation.ring.trace import Trace
from tests.support.variables import WrongVariableError, is_on, whole_number

SEEDS_DEFAULT = 400
EXIT_USAGE = 2


def main() -> int:
    """0 when every promise was kept, 2 when a variable is wrong."""
    try:
        seed = whole_number("SEED", None, meaning="the one seed to tell, as in SEED=7")
        first = whole_number("FIRST", 0, meaning="the seed to begin with, as in FIRST=1000")
        count = whole_number(
            "SEEDS", SEEDS_DEFAULT, least=1, meaning="how many seeds to tell, as in SEEDS=200"
        )
        shrinks = is_on("SHRINK", meaning="to leave out what the scenario of SEED fails without")
        if shrinks and seed is None:
            raise WrongVariableError("SHRINK: it is for one scenario: give its SEED, as in SEED=7")
    except WrongVariableError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    if seed is not None:
        return _run_one(seed, shrinks=shrinks)
    runs = run_many(range(first, first + count))
    print("\n".join(report(runs)))
    return int(any(outcome.failure for outcome in runs.outcomes) or bool(unneeded(runs)))


def _run_one(seed: int, *, shrinks: bool) -> int:
    scenario = make_scenario(seed)
    if shrinks:
        failed = run(scenario)
        if failed.failure is not None:
            scenario = shrink(until(scenario, failed.virtual_ms), _fails)
    trace = Trace(is_on=True)
    outcome = run(scenario, trace)
    print("\n".join(trace.lines))
    ring = f"{scenario.broker_count} brokers, factor {scenario.factor}, {scenario.environment}"
    print(f"seed {seed}: {ring}, {len(scenario.happenings)} events")
    if shrinks:
        print("\n".join(f"  {happening}" for happening in scenario.happenings))
    print(outcome.failure or "every promise was kept")
    return int(outcome.failure is not None)


def _fails(scenario: Scenario) -> bool:
    return run(scenario).failure is not None


if __name__ == "__main__":
    sys.exit(main())
