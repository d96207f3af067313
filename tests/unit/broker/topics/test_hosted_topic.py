import asyncio
import errno
import os
import shutil
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from tailrace.wire import LOG_START_FILE
from tailrace_broker.codec.batch import read_header
from tailrace_broker.codec.journal import encode_file_header, read_file_header
from tailrace_broker.core.node.events import Recovered
from tailrace_broker.core.ring.arithmetic import token
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.commands import AcceptLoss, DeleteTopic, Lead, Stamped
from tailrace_broker.model.damage import LostEnd
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NoLeaderError,
    NotLeaderError,
    PartitionNotFoundError,
    SupersededError,
)
from tailrace_broker.model.ring_state import RangeEnd, Replica
from tailrace_broker.model.topic import NO_EPOCH, Partition, TopicSettings
from tailrace_broker.node import ring
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.rescued_tail import save_rescued
from tests.support.broker.brokers import open_broker, started_broker
from tests.support.ring.ring_disk import put_ring_state, put_topics, ring_state_on
from tests.support.storage.batches import SPLIT_TOPIC
from tests.support.storage.full_disk import full_disk
from tests.support.storage.storage import (
    MEBIBYTE,
    Appends,
    FaultyDisk,
    read_all,
    records_of,
    values_in,
)
from tests.support.waits import until

# Each starts a broker, which takes as long as the disk does.
pytestmark = pytest.mark.timeout(20)

LOW_KEY = next(b"%d" % n for n in range(100) if token(b"%d" % n) < 0)
HIGH_KEY = next(b"%d" % n for n in range(100) if token(b"%d" % n) >= 0)
PARENT, HIGH_CHILD, LOW_CHILD = 0, 1, 2
SEALED_END = 5
VALUES = [b"%d" % number for number in range(SEALED_END)]


async def split(root: Path, values: list[bytes]) -> None:
    """The split topic as a step leaves it: its parent has these records."""
    (parent, *_) = SPLIT_TOPIC.partitions
    unsealed = msgspec.structs.replace(parent, epoch=0, sealed_end=None, children=())
    put_topics(root, msgspec.structs.replace(SPLIT_TOPIC, partitions=(unsealed,)))
    async with started_broker(root) as broker:
        await Appends(broker.hosted("split").open_log_of(PARENT)).batch(values)
    put_topics(root, SPLIT_TOPIC)


async def test_a_sealed_partition_is_read_to_its_end_and_takes_nothing(tmp_path: Path) -> None:
    await split(tmp_path, VALUES)
    async with started_broker(tmp_path) as broker:
        hosted = broker.hosted("split")
        log = hosted.log_of(PARENT)
        assert [record.value for record in records_of(await log.read(0, MEBIBYTE))] == VALUES
        assert (log.high_watermark, await log.read(SEALED_END, 1)) == (SEALED_END, [])
        await log.wait_beyond(SEALED_END)  # nothing will come
        with pytest.raises(
            NotLeaderError, match="sealed; its keys go on in partitions 1, 2"
        ) as refused:
            hosted.open_log_of(PARENT)
        assert refused.value.members == {
            "topic": "split",
            "partition": PARENT,
            "leader": 0,
            "children": [HIGH_CHILD, LOW_CHILD],
        }
        assert (refused.value.retriable, refused.value.write_attempted) == (True, False)


async def test_every_key_goes_to_the_child_that_has_its_token(tmp_path: Path) -> None:
    """Though the children's ids are not in the order of their tokens."""

    await split(tmp_path, VALUES)
    async with started_broker(tmp_path) as broker:
        hosted = broker.hosted("split")
        assert hosted.partition_of_key(LOW_KEY) == LOW_CHILD
        assert hosted.partition_of_key(HIGH_KEY) == HIGH_CHILD
        taken = [hosted.partition_of_key(None) for _ in range(4)]
        assert taken == [LOW_CHILD, HIGH_CHILD] * 2

        log = hosted.open_log_of(LOW_CHILD)
        assert await Appends(log).event(b"new") == SEALED_END
        assert log.log_start == SEALED_END


async def test_a_sealed_partition_that_lacks_records_stands_still_alone(tmp_path: Path) -> None:
    await split(tmp_path, VALUES[:-1])
    async with started_broker(tmp_path) as broker:
        log = broker.hosted("split").log_of(PARENT)
        assert broker.damaged_count == 1
        assert log.lost_end == LostEnd(4, SEALED_END, SEALED_END)
        assert await values_in(log) == VALUES[:-1]
        with pytest.raises(CorruptPartitionError, match="offsets from 4 to 4 were") as refused:
            await log.read(4, 1)
        assert refused.value.members == {"topic": "split", "partition": PARENT}


@pytest.mark.parametrize("partition", [-1, 3])
async def test_a_partition_that_is_not_there_is_named(tmp_path: Path, partition: int) -> None:
    put_topics(tmp_path, SPLIT_TOPIC)
    async with started_broker(tmp_path) as broker:
        hosted = broker.hosted("split")
        for ask in (hosted.log_of, hosted.open_log_of):
            with pytest.raises(PartitionNotFoundError, match='"split" has partitions 0 to 2'):
                ask(partition)


def spoil(root: Path, *partitions: int) -> None:
    """Let nobody know where the logs of these partitions of the split topic start."""
    for partition in partitions:
        directory = root / "data" / str(SPLIT_TOPIC.topic_id) / str(partition)
        directory.mkdir(parents=True)
        (directory / LOG_START_FILE).write_bytes(b"{")


async def test_events_without_a_key_go_round_damaged_partitions(tmp_path: Path) -> None:
    await split(tmp_path, VALUES)
    spoil(tmp_path, LOW_CHILD)
    async with started_broker(tmp_path) as broker:
        hosted = broker.hosted("split")
        assert {hosted.partition_of_key(None) for _ in range(4)} == {HIGH_CHILD}
        assert hosted.partition_of_key(LOW_KEY) == LOW_CHILD


async def test_what_the_journal_holds_of_a_damaged_partition_is_kept_until_it_is_restored(
    tmp_path: Path,
) -> None:
    """The journal goes on without it."""
    killed = tmp_path / "killed"
    partition = killed / "data" / str(SPLIT_TOPIC.topic_id) / str(LOW_CHILD)
    log_start = partition / LOG_START_FILE

    await split(tmp_path / "live", VALUES)
    async with started_broker(tmp_path / "live") as broker:
        log = broker.hosted("split").open_log_of(LOW_CHILD)
        await Appends(log).event(b"5")
        await log.spilled()
        await Appends(log).batch([b"6", b"7"])
        shutil.copytree(tmp_path / "live", killed)
    log_start.write_bytes(b"{")
    keep_frames_behind_the_first(killed / "data" / "journal")
    sizes = []
    for _ in range(3):
        async with started_broker(killed) as broker:
            assert broker.damaged_count == 1
        sizes.append((partition / "journaled.batches").stat().st_size)
    assert len(set(sizes)) == 1
    shutil.rmtree(killed / "data" / "journal")
    log_start.unlink()
    for _ in range(2):
        async with started_broker(killed) as broker:
            found = broker.hosted("split").log_of(LOW_CHILD)
            assert await values_in(found) == [b"5", b"6", b"7"]
    assert not (partition / "journaled.batches").exists()


class Killed:
    """Topic "t" of two events: the first in a segment, the second in the journal; and nobody knows
    where its log starts.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "killed"
        self.directory = Path()
        self.rescued = Path()
        self._segment = Path()

    async def make(self) -> None:
        live = self.root.parent / "live"
        async with started_broker(live) as broker:
            topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            log = broker.hosted("t").log_of(0)
            await Appends(log).event(b"0")
            await log.spilled()
            await Appends(log).event(b"1")
            shutil.copytree(live, self.root)
        keep_frames_behind_the_first(self.root / "data" / "journal")
        self.directory = self.root / "data" / str(topic.topic_id) / "0"
        self.rescued = self.directory / "journaled.batches"
        (self._segment,) = self.directory.glob("*.log")
        (self.directory / LOG_START_FILE).write_bytes(b"{")

    def restore(self) -> None:
        (self.directory / LOG_START_FILE).unlink()

    def set_segment_aside(self) -> None:
        """As if its batch had been in the journal, too, at an earlier start."""
        self.restore()
        batch = memoryview(self._segment.read_bytes())
        self._segment.write_bytes(b"")
        save_rescued(self.directory, [batch[: read_header(batch).batch_bytes]])

    def lose_journal(self) -> None:
        for path in (self.root / "data" / "journal").iterdir():
            path.rename(f"{path}.lost")

    async def values(self) -> list[bytes | None]:
        """After another start."""
        async with started_broker(self.root) as broker:
            return await values_in(broker.hosted("t").log_of(0))


async def test_a_full_disk_takes_what_the_journal_holds_of_a_damaged_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(tmp_path)
    await killed.make()
    with full_disk(monkeypatch):
        async with started_broker(killed.root) as broker:
            assert broker.damaged_count == 1
    killed.lose_journal()
    killed.restore()
    assert await killed.values() == [b"0", b"1"]


async def test_a_registration_names_the_ranges_in_which_a_start_found_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only copy serves what is there."""
    registered: list[Recovered] = []
    shipped = ring.RingNode.register

    async def register(self: ring.RingNode, recovered: Recovered) -> None:
        registered.append(recovered)
        await shipped(self, recovered)

    monkeypatch.setattr(ring.RingNode, "register", register)

    killed = Killed(tmp_path)
    await killed.make()
    assert registered.pop() == Recovered((RangeEnd(0, NO_EPOCH, 0),))
    async with started_broker(killed.root) as broker:
        assert broker.damaged_count == 1
        (recovered,) = registered
        assert recovered.damaged == (0,)
        mine, state = broker.ring.registration, broker.ring.state
        assert mine is not None
        assert state is not None
        assert (mine.ends, mine.loss) == (recovered.ends, "process")
        assert state.ranges[0].isr == (Replica(0, mine.number),)
        assert state.ranges[0].leader == Replica(0, mine.number)


async def test_a_disk_that_does_not_take_it_stops_no_start_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(tmp_path)
    await killed.make()
    disk = FaultyDisk(monkeypatch, spares_metadata=True)
    disk.fail("replace", skipped=1)  # the first one is of the start
    with capture_logs() as logs:
        async with started_broker(killed.root) as broker:
            assert broker.damaged_count == 1
    (failed,) = [line for line in logs if line["event"] == "rescue.failed"]
    assert (failed["file"], failed["log_level"]) == (str(killed.rescued), "error")
    assert not killed.rescued.exists()
    killed.restore()
    assert await killed.values() == [b"0", b"1"]


async def test_what_was_set_aside_and_cannot_be_removed_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(tmp_path)
    await killed.make()
    async with started_broker(killed.root):
        assert killed.rescued.exists()
    killed.restore()
    unlink = os.unlink

    def failing(path: Path) -> None:
        if path == killed.rescued:
            raise OSError(errno.EIO, "I/O error")
        unlink(path)

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(os, "unlink", failing)
        assert await killed.values() == [b"0", b"1"]
    kept = [line["log_level"] for line in logs if line["event"] == "rescued.kept"]
    assert kept == ["warning"]
    assert killed.rescued.exists()
    assert await killed.values() == [b"0", b"1"]
    assert not killed.rescued.exists()


def stop_behind_the_deletion(killed: Killed) -> None:
    """Between the agreement and the move to the trash."""
    deleted = Stamped(1, DeleteTopic("t", 10**18))
    put_ring_state(killed.root, apply_command(ring_state_on(killed.root), deleted))


async def test_a_deletion_keeps_what_was_set_aside_before(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    await killed.make()
    killed.set_segment_aside()
    stop_behind_the_deletion(killed)
    async with started_broker(killed.root) as broker:
        await broker.restore_topic("t", None)
        assert await values_in(broker.hosted("t").log_of(0)) == [b"0", b"1"]


async def test_a_deletion_of_which_nothing_can_be_set_aside_is_one_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(tmp_path)
    await killed.make()
    stop_behind_the_deletion(killed)
    FaultyDisk(monkeypatch, spares_metadata=True).fail("replace", skipped=1)
    with capture_logs() as logs:
        async with started_broker(killed.root) as broker:
            assert broker.topics() == []
    failed = [line["log_level"] for line in logs if line["event"] == "rescue.failed"]
    assert failed == ["error"]


def keep_frames_behind_the_first(journal: Path) -> None:
    """As if the first frame's file had been used again: its events are in the segment alone."""
    for path in journal.iterdir():
        stored = path.read_bytes()
        header = read_file_header(memoryview(stored))
        second = stored.find(b"TRLJ", stored.find(b"TRLJ") + 1)
        if header is not None and second > 0:
            later = header._replace(first_sequence=header.first_sequence + 1)
            head = encode_file_header(later).ljust(BLOCK_BYTES, b"\0")
            path.write_bytes((head + stored[second:]).ljust(len(stored), b"\0"))


async def test_when_all_are_damaged_the_one_in_turn_says_so(tmp_path: Path) -> None:
    await split(tmp_path, VALUES)
    spoil(tmp_path, LOW_CHILD, HIGH_CHILD)
    async with started_broker(tmp_path) as broker:
        hosted = broker.hosted("split")
        with pytest.raises(CorruptPartitionError):
            hosted.open_log_of(hosted.partition_of_key(None))


async def test_each_start_begins_an_epoch(tmp_path: Path) -> None:
    """Of its own, so that what another start wrote is never taken for its own."""

    for boot in range(1, 4):
        async with started_broker(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            hosted = broker.hosted("t")
            await Appends(hosted.log_of(0)).event(b"%d" % boot)
            assert hosted.topic == topic
            assert topic.partitions[0].epoch == boot
            batches = await read_all(hosted.log_of(0))
            headers = [batch.header for batch in batches]
            assert [(each.epoch, each.previous_epoch) for each in headers] == [
                (epoch, epoch - 1) for epoch in range(1, boot + 1)
            ]


async def test_an_old_copy_of_the_identity_is_no_start_of_the_disk(tmp_path: Path) -> None:
    """The ring knows of later ones: what the others wrote since is not there for sure."""
    path = tmp_path / "data" / "meta.json"
    failures: list[BaseException] = []

    contents: list[bytes] = []
    for _ in range(3):
        async with started_broker(tmp_path):
            contents.append(path.read_bytes())
    path.write_bytes(contents[0])
    async with open_broker(tmp_path, failures=failures) as broker:
        starting = asyncio.create_task(broker.start())
        await until(lambda: bool(failures))
        starting.cancel()
    assert isinstance(failures[0], SupersededError)


async def test_a_log_that_is_newer_than_the_ring_stands_still(tmp_path: Path) -> None:
    """An old copy of what the ring agreed was put back."""

    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
    for _ in range(2):
        async with started_broker(tmp_path) as broker:
            await Appends(broker.hosted("t").log_of(0)).event(b"0")
    newest = ring_state_on(tmp_path)
    older = msgspec.structs.replace(newest.ranges[0], epoch=0)
    put_ring_state(tmp_path, msgspec.structs.replace(newest, ranges={0: older}))
    async with started_broker(tmp_path) as broker:
        with pytest.raises(CorruptPartitionError, match="in epoch 3, but the ring is in epoch"):
            broker.hosted("t").log_of(0)


async def test_what_the_journal_holds_of_a_range_without_a_leader_is_there_when_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are recovered before the broker registers, whoever leads."""
    monkeypatch.setattr(ring, "LEAD_S_MAX", 0.01)
    killed = tmp_path / "killed"

    async with started_broker(tmp_path / "live") as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        await Appends(broker.hosted("t").log_of(0)).event(b"0")
        shutil.copytree(tmp_path / "live", killed)
    lose_track(killed)
    async with started_broker(killed) as broker:
        with pytest.raises(NoLeaderError, match="no broker leads partition 0") as refused:
            broker.hosted("t").log_of(0)
        assert refused.value.members == {"topic": "t", "partition": 0, "range": 0}

        mine, state = broker.ring.registration, broker.ring.state
        assert mine is not None
        assert state is not None
        assert mine.ends == (RangeEnd(0, last_epoch=1, end=1),)
        epoch = state.ranges[0].epoch
        await broker.ring.change(AcceptLoss(0, epoch, mine.ordinal, mine.number))
        assert await values_in(broker.hosted("t").log_of(0)) == [b"0"]


async def test_what_the_journal_holds_of_a_range_that_others_have_is_set_aside(
    tmp_path: Path,
) -> None:
    """It goes on without it; when the range is here again, all is there."""
    killed = tmp_path / "killed"

    async with started_broker(tmp_path / "live") as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        await Appends(broker.hosted("t").log_of(0)).event(b"0")
        shutil.copytree(tmp_path / "live", killed)
    state = ring_state_on(killed)
    elsewhere = msgspec.structs.replace(
        state.ranges[0], natural_leader=1, replicas=(1,), isr=(Replica(1, 1),), leader=None
    )
    put_ring_state(killed, msgspec.structs.replace(state, ranges={0: elsewhere}))
    rescued = killed / "data" / str(topic.topic_id) / "0" / "journaled.batches"
    async with started_broker(killed) as broker:
        with pytest.raises(NoLeaderError, match="no broker leads partition 0"):
            broker.hosted("t").log_of(0)
        assert (broker.damaged_count, rescued.exists()) == (0, True)
    now = ring_state_on(killed)
    here = msgspec.structs.replace(state.ranges[0], isr=(Replica(0, now.brokers[0].number),))
    put_ring_state(killed, msgspec.structs.replace(now, ranges={0: here}))
    async with started_broker(killed) as broker:
        assert await values_in(broker.hosted("t").log_of(0)) == [b"0"]
        assert not rescued.exists()


def lose_track(root: Path) -> None:
    """As if the disk had been a copy: the ring knows another start of it."""
    state = ring_state_on(root)
    mine = msgspec.structs.replace(state.brokers[0], start=UUID(int=1))
    put_ring_state(root, msgspec.structs.replace(state, brokers={0: mine}))


async def test_a_log_stays_open_when_its_range_has_another_epoch(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        before = broker.hosted("t").log_of(0)
        await Appends(before).event(b"0")
        mine = broker.ring.registration
        assert mine is not None
        await broker.ring.change(Lead(0, epoch=1, ordinal=0, registration=mine.number))
        await Appends(before).event(b"1")
        await broker.create_topic("other", TopicSettings())
        after = broker.hosted("t").log_of(0)
        assert after is before
        await Appends(after).event(b"2")
        batches = await read_all(after)
        assert [batch.header.epoch for batch in batches] == [1, 2, 2]
        assert broker.hosted("t").topic.partitions[0].epoch == 2


async def test_a_deposed_broker_says_so_in_the_turn_in_which_the_state_is_applied(
    tmp_path: Path,
) -> None:
    """Its logs stay open: it is a replica all the same, and may lead again."""

    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        hosted = broker.hosted("t")
        log = hosted.log_of(0)
        await Appends(log).event(b"0")
        state = broker.ring.state
        assert state is not None
        roles = broker._topics.local._roles
        nobody = msgspec.structs.replace(state.ranges[0], leader=None)
        roles.apply(msgspec.structs.replace(state, ranges={0: nobody}), broker.ring.registration)
        with pytest.raises(NoLeaderError):
            hosted.log_of(0)
        assert hosted.log_ends() == [None]
        assert hosted.all_logs() == [log]

        roles.apply(state, broker.ring.registration)
        assert hosted.log_of(0) is log


async def test_a_sealed_partition_keeps_its_epoch(tmp_path: Path) -> None:
    await split(tmp_path, VALUES)
    for epoch in (3, 4):
        async with started_broker(tmp_path) as broker:
            found = broker.hosted("split").topic.partitions
            assert [partition.epoch for partition in found] == [1, epoch, epoch]


@pytest.mark.parametrize("count", [1, 3, 256])
async def test_a_new_topic_has_each_token_in_one_open_partition(tmp_path: Path, count: int) -> None:
    async with started_broker(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=count))
        hosted = broker.hosted("t")
        for number in range(300):
            key = b"%d" % number
            found: Partition = topic.partitions[hosted.partition_of_key(key)]
            assert found.token_start <= token(key) < found.token_end
