"""What a stopped broker's ring has committed, read from its disk and put there."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.codec.ring_snapshot import decode_state, encode_slices
from tailrace_broker.core.ring.arithmetic import UNIT_TOKENS
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    Block,
    Commit,
    Configuration,
    DiskId,
    Head,
    Kept,
    Snapshot,
    Term,
)
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.ring_state import (
    RangeState,
    Registration,
    Replica,
    RingState,
    Slices,
    TopicState,
)
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.metadata.files import MetadataFiles

T = TypeVar("T")


def ring_state_on(root: Path) -> RingState:
    """What has been committed."""
    return state_of(_with_files(root, MetadataFiles.load))


def state_of(kept: Kept) -> RingState:
    """What the records of a disk make of its snapshot."""
    assert kept.snapshot is not None
    state = decode_state(kept.snapshot.state)
    by_id = {block.id: block for block in kept.blocks}
    chain: list[Block] = []
    block_id = kept.commit
    while block_id in by_id:
        chain.append(by_id[block_id])
        block_id = by_id[block_id].parent
    for block in reversed(chain):
        if block.kind == COMMAND:
            state = apply_command(state, decode_command(block.payload))
    return state


def put_ring_state(root: Path, state: RingState) -> None:
    """Replace all that was committed before. `root`: the directory of a stopped broker."""
    directory = DataDirectory(root)
    voters = Configuration((DiskId(directory.identity.ordinal, directory.identity.incarnation),))
    directory.close()
    initial = Snapshot(INITIAL_ID, voters, b"".join(encode_slices(state)))

    async def replace(files: MetadataFiles) -> None:
        kept = await files.load()
        records = (Term(kept.term.term), Head(INITIAL_ID), Commit(INITIAL_ID))
        done: asyncio.Future[TailraceError | None] = asyncio.get_running_loop().create_future()
        files.replace(1, initial, records, lambda _, error: done.set_result(error))
        assert await done is None

    _with_files(root, replace)


def put_topics(root: Path, *topics: Topic) -> None:
    """A ring of this broker alone that has committed these topics, their sealed partitions and
    their epochs; the directory may be new.
    """
    directory = DataDirectory(root)
    if not directory.identity.starts:
        directory.begin_boot()
    identity = directory.identity
    directory.close()
    registration = Registration(
        identity.ordinal, 1, identity.incarnation, identity.boot, identity.starts[-1].id, "clean"
    )
    partitions: dict[int, list[Partition]] = {}
    for topic in topics:
        for partition in topic.partitions:
            partitions.setdefault(partition.range_id, []).append(partition)
    state = RingState(
        identity.cluster_id or UUID(int=1),
        broker_count=1,
        factor=1,
        brokers={identity.ordinal: registration},
        ranges={
            range_id: _range_of(range_id, partition) for range_id, partition in partitions.items()
        },
        next_range_id=max(partitions) + 1,
        topics={topic.name: topic_state_of(topic) for topic in topics},
    )
    put_ring_state(root, state)


def topic_state_of(topic: Topic) -> TopicState:
    """As the ring keeps it, with its lineage."""
    slices = []
    for range_id, same in groupby(topic.partitions, key=lambda partition: partition.range_id):
        parts = list(same)
        slices.append(
            Slices(
                range_id,
                parts[0].partition,
                tuple(part.token_start for part in parts),
                tuple(part.first_offset for part in parts),
                tuple(part.parents for part in parts),
                tuple(part.sealed_end for part in parts if part.sealed_end is not None),
                tuple(part.children for part in parts),
            )
        )
    return TopicState(
        topic.name, topic.topic_id, topic.settings, tuple(slices), len(topic.partitions)
    )


def _range_of(range_id: int, partitions: Sequence[Partition]) -> RangeState:
    start = min(partition.token_start for partition in partitions)
    end = max(partition.token_end for partition in partitions)
    epoch = max(partition.epoch for partition in partitions)
    is_sealed = partitions[0].is_sealed
    return RangeState(
        range_id,
        start,
        end,
        (end - start) // UNIT_TOKENS,
        natural_leader=0,
        replicas=(0,),
        isr=(Replica(0, 1),),
        epoch=epoch,
        sealed_epoch=epoch if is_sealed else None,
        complete=(0,) if is_sealed else (),
    )


def _with_files(root: Path, use: Callable[[MetadataFiles], Awaitable[T]]) -> T:
    """Also for a test that is in an event loop itself."""

    async def run() -> T:
        bugs: list[BaseException] = []
        io = IoThreads(1, bugs.append)
        io.start()
        files = MetadataFiles(root / "data" / "metadata", io, is_direct=False)
        try:
            used = await use(files)
            await files.close()
        finally:
            io.stop()
        assert bugs == []
        return used

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()
