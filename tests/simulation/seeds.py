"""Which scenarios of a simulator a run tries, as `make simulation` says."""

import os

SEEDS_DEFAULT = 10


def asked_seeds(scenarios_per_seed: int = 1) -> range:
    """`SEEDS` times `scenarios_per_seed`, from `FIRST` on."""
    first, seeds = os.environ.get("FIRST", "0"), os.environ.get("SEEDS", str(SEEDS_DEFAULT))
    return range(int(first), int(first) + int(seeds) * scenarios_per_seed)
