"""`python -m tests.simulation.replication`: replicas under many seeds, on all cores.

`SEEDS=n FIRST=k`: so many, from that one on. `SEED=x`: this one, with its trace.
"""

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable

from tests.simulation.replication.walk import Outcome, run
from tests.support.variables import WrongVariableError, whole_number

SEEDS_DEFAULT = 200
FAILURES_SHOWN = 20
EXIT_USAGE = 2


def main() -> int:
    """0 when every promise was kept, 2 when a variable is wrong."""
    try:
        seed = whole_number("SEED", None, meaning="the one seed to run, as in SEED=7")
        first = whole_number("FIRST", 0, meaning="the seed to begin with, as in FIRST=1000")
        count = whole_number(
            "SEEDS", SEEDS_DEFAULT, least=1, meaning="how many seeds to run, as in SEEDS=200"
        )
    except WrongVariableError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    if seed is not None:
        trace: list[str] = []
        outcome = run(seed, trace)
        print("\n".join(trace))
        print(outcome.failure or "every promise was kept")
        return int(outcome.failure is not None)
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool() as pool:
        outcomes = pool.map(run, range(first, first + count), chunksize=1)
    failed = [each for each in outcomes if each.failure is not None]
    print(f"{count} seeds in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    _print("faults", (each.faults for each in outcomes))
    _print("rules", (each.rules for each in outcomes))
    _print("counts", (each.counts for each in outcomes))
    _print_failures(failed[:FAILURES_SHOWN])
    return int(bool(failed))


def _print(what: str, counters: Iterable[Counter[str]]) -> None:
    total: Counter[str] = sum(counters, Counter())
    print(f"{what}: " + ", ".join(f"{name} {count:,}" for name, count in sorted(total.items())))


def _print_failures(failed: Iterable[Outcome]) -> None:
    for each in failed:
        print(f"seed {each.seed} FAILED: {each.failure}")


if __name__ == "__main__":
    sys.exit(main())
