"""What the listeners need of a partition's log, wherever it is."""

from collections.abc import Sequence
from typing import Protocol

from tailrace_broker.codec.batch import BatchBody, StoredBatch
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import OnAppended
from tailrace_broker.model.damage import Damage, LostEnd


class Appends(Protocol):
    """Takes appends for a partition, wherever it is led."""

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """Append one event; `done` once it is stored as the topic's durability says.

        Of a `producer`'s request once alone: its retry is answered as a duplicate, or refused.
        """

    def append_records(
        self,
        contents: RecordColumns | BatchBody,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """Append a batch of its own; `done` as for an event. A body is compressed and checked."""


class ReadLog(Protocol):
    """A log to read, here or elsewhere."""

    @property
    def high_watermark(self) -> int:
        """The end of what can be read."""

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`."""


class OpenLog(Appends, ReadLog, Protocol):
    """An open partition."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""

    @property
    def log_end(self) -> int:
        """The end of this replica's log."""

    @property
    def is_served(self) -> bool:
        """This process leads its range, or has a whole copy of a sealed one, for users."""

    @property
    def is_led(self) -> bool:
        """This process takes appends: not while it is about to lead."""

    @property
    def knows_end(self) -> bool:
        """The high watermark is no older than one that an earlier leader has given to readers."""

    async def check_led(self) -> None:
        """NoLeaderError: another broker may lead by now, and have committed more."""

    async def check_end(self) -> None:
        """NoLeaderError: so it may be, or this one is new, and does not know all yet."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches on disk."""

    @property
    def lost_end(self) -> LostEnd | None:
        """Return the loss for which it takes no writes."""

    @property
    def quarantined(self) -> Sequence[Damage]:
        """Return its known damage, in order."""

    async def find_timestamp(self, timestamp_us: int) -> int | None:
        """The first committed offset whose record is of this time or later; None: there is none."""

    async def wait_beyond(self, offset: int) -> None:
        """Wait until the high watermark is above `offset`, or the log takes no more appends."""


class SealedLog(Protocol):
    """A whole copy of a sealed log."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""

    @property
    def log_end(self) -> int:
        """Where it was sealed."""

    async def read_written(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Batches from the one that holds `offset`; from the catch-up quota of the memory."""
