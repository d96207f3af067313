"""The simulated disk itself: what is lost with the power, what a killed process leaves."""

import random
from uuid import UUID

from tests.simulation.ring.disk import (
    SECTOR_BYTES,
    Disk,
    DiskAction,
    Identity,
    Rename,
    Sync,
    SyncDirectory,
    Write,
)

TRIES = 60
OLD, NEW = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES


def disk(seed: int, *actions: DiskAction) -> Disk:
    """An empty one, with this done to it."""
    made = Disk(Identity(UUID(int=1), 0, (), 0, is_clean=False), random.Random(seed))
    for action in actions:
        made.begin(action)
        made.end(action)
    return made


def sectors(contents: bytes) -> set[bytes]:
    return {contents[at : at + SECTOR_BYTES] for at in range(0, len(contents), SECTOR_BYTES)}


def test_what_was_synced_survives_a_loss_of_power() -> None:
    for seed in range(TRIES):
        tried = disk(
            seed,
            Write("a", 0, OLD * 4, is_synced=False),
            Sync("a"),
            Write("b", 0, NEW, is_synced=True),
            SyncDirectory(),
        )
        tried.crashed("power")

        assert tried.files == {"a": OLD * 4, "b": NEW}


def test_what_was_not_synced_is_lost_by_sectors() -> None:
    found = set()
    for seed in range(TRIES):
        tried = disk(
            seed,
            Write("a", 0, OLD * 4, is_synced=True),
            SyncDirectory(),
            Write("a", 0, NEW * 4, is_synced=False),
        )
        tried.crashed("power")
        found.add(tried.files["a"])

    assert {OLD * 4, NEW * 4} < found
    assert all(sectors(contents) <= {OLD, NEW} for contents in found)


def test_a_later_synced_write_stays_where_an_earlier_one_is_lost() -> None:
    for seed in range(TRIES):
        tried = disk(
            seed,
            Write("a", 0, OLD * 2, is_synced=True),
            SyncDirectory(),
            Write("a", 0, b"x" * SECTOR_BYTES * 2, is_synced=False),
            Write("a", SECTOR_BYTES, NEW, is_synced=True),
        )
        tried.crashed("power")

        assert tried.files["a"][SECTOR_BYTES:] == NEW


def test_names_go_back_to_what_they_were_when_the_directory_was_synced() -> None:
    found = set()
    for seed in range(TRIES):
        tried = disk(
            seed,
            Write("kept", 0, OLD, is_synced=True),
            SyncDirectory(),
            Write("new", 0, NEW, is_synced=True),
            Rename("new", "kept"),
        )
        tried.crashed("power")
        found.add((tuple(tried.files), tried.files["kept"]))

    assert (("kept",), OLD) in found
    assert (("kept",), NEW) in found


def test_a_killed_process_loses_nothing_that_was_completed() -> None:
    tried = disk(0, Write("a", 0, NEW, is_synced=False))
    tried.crashed("process")

    assert tried.files == {"a": NEW}


def test_a_write_under_way_is_there_or_torn_or_not() -> None:
    found = set()
    for seed in range(TRIES):
        tried = disk(seed, Write("a", 0, OLD * 4, is_synced=True), SyncDirectory())
        tried.begin(Write("a", 0, NEW * 4, is_synced=True))
        tried.crashed("process")
        found.add(tried.files["a"])

    assert {OLD * 4, NEW * 4} < found
    assert all(sectors(contents) <= {OLD, NEW} for contents in found)


def test_a_copy_is_what_was_durable() -> None:
    tried = disk(1, Write("a", 0, OLD, is_synced=True), SyncDirectory())
    copied = tried.copy()
    later = Write("a", 0, NEW, is_synced=True)
    tried.begin(later)
    tried.end(later)

    assert copied.files == {"a": OLD}
    assert copied.identity == tried.identity
