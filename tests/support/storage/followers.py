"""A follower's log as its leader drives it: stored batches, cuts, and what became of each."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, ParamSpec

from tailrace_broker.codec.batch import BatchBody, StoredBatch, stamp_batch, verified_batches
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendOutcome,
    CutOutcome,
    Misfit,
)
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.range_role import RangeRole
from tests.support.storage.batches import Event, body_of, place_of
from tests.support.storage.storage import Engine, LogFiles, leads_surely, open_engine_on

P = ParamSpec("P")

PRODUCER_ID = bytes(range(16))


def stored_batch(
    values: Sequence[bytes],
    base_offset: int,
    *,
    epoch: int = 1,
    previous_epoch: int | None = None,
    high_watermark: int = 0,
    sequence: int | None = None,
    append_time_us: int | None = None,
) -> StoredBatch:
    """A batch as a leader sends it; `previous_epoch` None: of the same epoch, unless first."""
    entries = [] if sequence is None else [TableEntry(PRODUCER_ID, sequence, 0, len(values))]
    body: BatchBody = body_of(
        [Event(each) for each in values], producer_table=encode_table(entries)
    )
    if previous_epoch is None:
        previous_epoch = epoch if base_offset else 0
    times = {} if append_time_us is None else {"append_time_us": append_time_us}
    place = place_of(
        base_offset=base_offset,
        epoch=epoch,
        previous_epoch=previous_epoch,
        high_watermark=high_watermark,
        **times,
    )
    (batch,) = verified_batches(memoryview(b"".join(stamp_batch(body, place).buffers)))
    return batch


class Follower:
    """One log that follows."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log

    def begin_append(self, *batches: StoredBatch) -> "asyncio.Future[AppendOutcome] | Misfit":
        """Append without waiting."""
        answer: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        return self.log.append_stored(batches, answer.set_result) or answer

    async def append(self, *batches: StoredBatch) -> AppendOutcome | Misfit:
        """Append, until it is written or has failed."""
        begun = self.begin_append(*batches)
        return begun if isinstance(begun, Misfit) else await begun

    async def write(self, *batches: StoredBatch) -> None:
        """Append, which goes well."""
        assert await self.append(*batches) == Appended(batches[0].header.base_offset)

    def begin_cut(
        self, end: int, epoch: int = 1, *, is_reset: bool = False
    ) -> "asyncio.Future[CutOutcome]":
        """Cut without waiting."""
        answer: asyncio.Future[CutOutcome] = asyncio.get_running_loop().create_future()
        self.log.cut(end, epoch, answer.set_result, is_reset=is_reset)
        return answer

    async def cut(self, end: int, epoch: int = 1, *, is_reset: bool = False) -> CutOutcome:
        """Cut, until it is done or has failed."""
        return await self.begin_cut(end, epoch, is_reset=is_reset)


def follow(files: LogFiles, **options: Any) -> AbstractAsyncContextManager[Engine]:
    """Partitions of which this process is a follower; keywords as for `open_engine_on`."""
    role = RangeRole(None, commits_alone=False, on_given_up=lambda epoch: None, prove=leads_surely)
    return open_engine_on(files, role=role, **options)


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        asyncio.run(test(*args, **options))

    return run
