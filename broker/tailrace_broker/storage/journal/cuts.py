"""Entries that cut many logs at once in the journal: at the end of a recovery."""

import asyncio
from collections.abc import Sequence

from tailrace_broker.codec.journal import JournalCut
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.files.io_threads import settle
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.journal.journal import Journal

# They take 64 KiB of a frame.
CUTS_OF_A_FRAME_MAX = 1024


async def write_cuts(journal: Journal, cuts: Sequence[JournalCut]) -> None:
    """Have these entries in the journal, durably. DiskFullError, StorageFailedError.

    All logs are open, so that the journal knows what its files hold for them.
    """
    for first in range(0, len(cuts), CUTS_OF_A_FRAME_MAX):
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        journal.add(_CutsWriter(cuts[first : first + CUTS_OF_A_FRAME_MAX], written))
        await written


class _CutsWriter:
    """Gives them at once."""

    is_synced = True

    def __init__(self, cuts: Sequence[JournalCut], written: asyncio.Future[None]) -> None:
        self._cuts = cuts
        self._written = written

    def take_for_journal(self) -> Sequence[JournalCut]:
        """All of them."""
        return self._cuts

    def on_journaled(
        self, _: JournalFile, error: TailraceError | None, *, is_durable: bool
    ) -> None:
        """They are durable, or failed. Nobody may wait any more: a start was ended by a signal."""
        settle(self._written, None, error)
