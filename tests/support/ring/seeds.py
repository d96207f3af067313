"""How often a test with a ring of processes runs, and with which seed."""

import random

from tests.support.variables import whole_number

RUNS = whole_number("RING_RUNS", 1, least=1, meaning="how often, as in RING_RUNS=10")
_SEED = whole_number("RING_SEED", None, meaning="the seed of a run that failed")


def seed_of(run: int) -> int:
    """Return the given seed, or a random one."""
    return random.SystemRandom().randrange(10**9) if _SEED is None else _SEED + run
