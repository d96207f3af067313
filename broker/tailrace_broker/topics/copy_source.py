"""A whole copy of a sealed log on another broker, asked over the link between the two."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.model.damage import given_up, unreadable
from tailrace_broker.model.errors import CorruptBatchError, NotReadyError, StoredDataError
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.replication import LogKey
from tailrace_broker.net.api.copies import ClockAnswer, ComparedAnswer, CopyEndsAnswer
from tailrace_broker.net.broker import LeaderAnswer, contents_of
from tailrace_broker.topics.log_copy import PIECE_BYTES, Compared, DamagedPart, SourceEnds

# Asks a broker. TailraceError.
Ask = Callable[[int, ForwardedCall], Awaitable[LeaderAnswer]]


async def clock_of(ask: Ask, ordinal: int) -> int:
    """What the clock of a broker says, in µs since the epoch. TailraceError."""
    answer = await contents_of(await ask(ordinal, ForwardedCall(0, b"/internal/clock", "")))
    return msgspec.json.decode(answer, type=ClockAnswer).now_us


class _UnreadableError(Exception):
    def __init__(self, lost: range, detail: str, *, is_accepted: bool) -> None:
        self.lost = lost
        self.detail = detail
        self.is_accepted = is_accepted


class RemoteCopy:
    """See `log_copy.CopySource`."""

    def __init__(self, ask: Ask, ordinal: int, key: LogKey) -> None:
        self._ask = ask
        self._ordinal = ordinal
        self._path = f"/internal/copies/{key.topic_id}/{key.partition}"

    async def ends(self) -> SourceEnds:
        """Return where it begins and ends."""
        answer = await self._get("")
        found = msgspec.json.decode(answer, type=CopyEndsAnswer)
        return SourceEnds(found.log_start, found.end)

    async def compare(self, start: int, end: int) -> Compared:
        """Return the checksum of its batches from the one that holds `start`, below `end`."""
        answer = await self._get(f"/checksum?start={start}&end={end}")
        found = msgspec.json.decode(answer, type=ComparedAnswer)
        return Compared(found.checksum, found.end, found.is_lost, found.is_damaged)

    async def read(self, offset: int) -> Sequence[StoredBatch] | range | DamagedPart:
        """Return some batches from the one that holds `offset`, or what cannot be read there."""
        try:
            content = await self._get(f"/batches?offset={offset}&maxBytes={PIECE_BYTES}")
        except _UnreadableError as error:
            lost, detail = error.lost, f"broker {self._ordinal}: {error.detail}"
            return lost if error.is_accepted else DamagedPart(lost.stop, detail)
        try:
            batches = verified_batches(memoryview(content))
        except CorruptBatchError as error:  # on the way, or of the source
            raise NotReadyError(f"broker {self._ordinal} has sent damaged batches") from error
        if not batches:
            raise NotReadyError(f"broker {self._ordinal} has no batch at offset {offset}")
        return batches

    async def _get(self, rest: str) -> bytes:
        target = (self._path + rest).encode()
        request = ForwardedCall(0, target, BATCH_CONTENT_TYPE if "batches" in rest else "")
        try:
            return await contents_of(await self._ask(self._ordinal, request))
        except StoredDataError as error:  # of that broker's disk: another may have a whole copy
            lost = unreadable(error)
            if lost is not None:
                is_accepted = given_up(error) is not None
                raise _UnreadableError(lost, error.detail, is_accepted=is_accepted) from error
            raise NotReadyError(
                f"broker {self._ordinal} cannot read its copy: {error.detail}"
            ) from error
