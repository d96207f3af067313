"""The simulated log of one replica: what a process that was killed leaves of it."""

import random

from tests.simulation.ring.data.model_log import Entry, ModelLog
from tests.simulation.ring.schedule import Schedule

SEEDS = 20


def killed_after_a_failed_write(seed: int, *, is_sealed: bool) -> ModelLog:
    """One record is there, and the next could not be written."""
    schedule = Schedule()
    log = ModelLog(schedule, random.Random(seed))
    entry = Entry(epoch=1, value=1, committed=0, size_bytes=1)
    log.append(0, [entry], is_durable=True, then=lambda _: None)
    schedule.run(1_000_000)
    log.failures = 1
    log.append(1, [entry], is_durable=True, then=lambda _: None)
    schedule.run(2_000_000)
    if is_sealed:
        log.seal()
    log.crashed("process")
    return log


def test_a_recovery_may_find_what_a_failed_write_has_left() -> None:
    ends = {killed_after_a_failed_write(seed, is_sealed=False).end for seed in range(SEEDS)}

    assert ends == {1, 2}


def test_nothing_is_found_behind_the_end_of_a_sealed_log() -> None:
    ends = {killed_after_a_failed_write(seed, is_sealed=True).end for seed in range(SEEDS)}

    assert ends == {1}
