"""Many seeds on all cores, and what they have covered."""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tests.simulation.ring.rules import RULES, SEEDS_OF_ALL_RULES
from tests.simulation.ring.run import Outcome, run
from tests.simulation.ring.scenario import Scenario, make_scenario

MS_PER_HOUR = 3_600_000
# With what is patched in this process.
FORKED = multiprocessing.get_context("fork")
FAILURES_SHOWN = 20


class Runs(NamedTuple):
    """What came of some seeds."""

    outcomes: Sequence[Outcome]
    seconds: float
    process_count: int


def tell_seed(seed: int, make: Callable[[int], Scenario] = make_scenario) -> Outcome:
    """A seed's own scenario; whatever else goes wrong says whose it was."""
    try:
        return run(make(seed))
    except Exception as error:
        error.add_note(f"in the scenario of seed {seed}")
        raise


def run_many(seeds: Iterable[int]) -> Runs:
    """Each in whatever process is free."""
    process_count = os.cpu_count() or 1
    began = time.monotonic()
    with FORKED.Pool(process_count) as pool:
        outcomes = pool.map(tell_seed, seeds, chunksize=1)
    return Runs(outcomes, time.monotonic() - began, process_count)


def unneeded(runs: Runs) -> list[str]:
    """Rules that nothing has needed, though there were seeds enough."""
    if len(runs.outcomes) < SEEDS_OF_ALL_RULES:
        return []
    fired = sum((each.rules for each in runs.outcomes), Counter[str]())
    return [each for each in RULES if not fired[each]]


def report(runs: Runs) -> list[str]:
    """Lines for people."""
    outcomes = runs.outcomes
    hours = sum(outcome.virtual_ms for outcome in outcomes) / MS_PER_HOUR
    minutes = runs.seconds / 60
    healed_ms = [outcome.healed_ms for outcome in outcomes]
    lines = [
        f"{len(outcomes)} seeds, {hours:.1f} virtual hours, "
        f"{sum(outcome.steps for outcome in outcomes):,} steps in {runs.seconds:.0f} s: "
        f"{len(outcomes) / minutes:.0f} seeds a minute on {runs.process_count} cores",
        f"whole again after {sum(healed_ms) // len(healed_ms)} ms, at most {max(healed_ms)} ms",
        _counted("faults", (outcome.faults for outcome in outcomes)),
        _counted("clients", (outcome.counts for outcome in outcomes)),
        _counted("rules", (outcome.rules for outcome in outcomes)),
    ]
    lines += [f"rule {each} was needed by none of the seeds" for each in unneeded(runs)]
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    lines += [f"seed {each.seed} FAILED: {each.failure}" for each in failed[:FAILURES_SHOWN]]
    if failed:
        lines.append(
            f"{len(failed)} of {len(outcomes)} seeds failed; SEED={failed[0].seed} "
            "SHRINK=1 make simulation shows one"
        )
    return lines


def _counted(what: str, counters: Iterable[Counter[str]]) -> str:
    total: Counter[str] = Counter()
    for counter in counters:
        total += counter
    return f"{what}: " + ", ".join(f"{name} {count:,}" for name, count in sorted(total.items()))
