"""The metadata log by example: what its frames look like, what is damage, and what is not."""

import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from crc32c import crc32c

from tailrace.wire import METADATA_LOGS
from tailrace_broker.codec.metadata_log import (
    BLOCK_BYTES,
    decode_snapshot,
    encode_frame,
    encode_record,
    encode_snapshot,
    read_frames,
)
from tailrace_broker.core.raft.metadata_log import (
    FileAction,
    MetadataLog,
    Remove,
    Reserve,
    Sync,
    Write,
    WriteSnapshot,
    owns,
)
from tailrace_broker.model.agreement import (
    INITIAL_ID,
    NOTHING,
    Block,
    BlockId,
    Commit,
    Configuration,
    DiskId,
    Head,
    Kept,
    Record,
    Reserved,
    Snapshot,
    Stored,
    Term,
)
from tailrace_broker.model.errors import CorruptMetadataError, StorageFailedError

LOG_BYTES = 8 * BLOCK_BYTES
DISK_ID = DiskId(2, UUID(int=5))
VOTERS = Configuration((DISK_ID,))
FOUNDED = Snapshot(INITIAL_ID, VOTERS, b"initial")
FIRST, SECOND = METADATA_LOGS


def block_of(height: int, payload: bytes = b"") -> Block:
    return Block(BlockId(1, height), BlockId(1, height - 1), 0, payload)


def block(height: int, payload: bytes = b"") -> Record:
    return Stored(block_of(height, payload))


class Disk:
    """Does all it is reported."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def start(self) -> tuple[Kept, MetadataLog]:
        kept, log = MetadataLog.recover(self.files, log_bytes=LOG_BYTES)
        self.do(log.prepare())
        return kept, log

    def do(self, actions: list[FileAction]) -> None:
        for action in actions:
            match action:
                case Reserve(name, size_bytes):
                    self.files[name] = self.files.get(name, b"").ljust(size_bytes, b"\0")
                case Write(name, position, contents):
                    self.put(name, position, contents)
                case WriteSnapshot(name, slices):
                    self.files[name] = b"".join(slices)
                case Remove(name):
                    del self.files[name]

    def put(self, name: str, position: int, contents: bytes) -> None:
        stored = self.files[name]
        self.files[name] = stored[:position] + contents + stored[position + len(contents) :]

    def flip(self, name: str, position: int) -> None:
        self.put(name, position, bytes([self.files[name][position] ^ 1]))


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def log(disk: Disk) -> MetadataLog:
    """Of a disk that was founded."""
    _, log = disk.start()
    disk.do(log.replace(FOUNDED, (Term(0),)))
    return log


# --- layout ---------------------------------------------------------------------------------------


def test_a_frame_is_laid_out_as_specified() -> None:
    frame = encode_frame(
        [encode_record(Term(7)), encode_record(Commit(BlockId(1, 2)))],
        generation=3,
        sequence=4,
        snapshot_id=BlockId(5, 6),
    )
    magic, version, zero, crc, size_bytes, *rest = struct.unpack_from("<4sHHIIQQqq", frame)
    assert (magic, version, zero, rest) == (b"TRLM", 1, 0, [3, 4, 5, 6])
    assert crc == crc32c(frame[12:size_bytes], crc32c(frame[:8]))
    records = bytes.fromhex("dd00000002 93a47465726d07c0 92a6636f6d6d6974920102")
    assert frame[48:size_bytes] == records
    assert frame[size_bytes:] == bytes(BLOCK_BYTES - size_bytes)


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (Term(7), "93 a47465726d 07 c0"),
        (Term(7, DISK_ID), f"93 a47465726d 07 92 02 d924{DISK_ID.incarnation}"),
        (block(2, b"xy"), "92 a5626c6f636b 94 920102 920101 00 c4027879"),
        (Head(BlockId(1, 300)), "92 a468656164 9201cd012c"),
        (Commit(NOTHING), "92 a6636f6d6d6974 92ffff"),
        (Reserved(DISK_ID.incarnation), f"92 a87265736572766564 d924{DISK_ID.incarnation}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Record) else "",
)
def test_records_are_laid_out_as_ever(record: Record, stored: str) -> None:
    written = str(DISK_ID.incarnation)
    assert encode_record(record) == bytes.fromhex(stored.replace(written, written.encode().hex()))


def test_a_snapshot_is_laid_out_as_specified() -> None:
    head, *state, end = encode_snapshot(BlockId(1, 2), Configuration(()), iter([b"ab", b"c"]))
    assert head == b"TRLS" + bytes.fromhex("0100 0000 07000000 92 920102 929090")
    assert state == [b"ab", b"c"]
    assert end[:8] == struct.pack("<Q", 3)
    assert end[8:] == struct.pack("<I", crc32c(head + b"abc" + end[:8]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda stored: stored[:20], "too short"),
        (lambda stored: stored[:-1], "checksum"),
        (lambda stored: b"X" + stored[1:], "checksum"),
        (lambda stored: resealed(stored[:4] + b"\2" + stored[5:]), "format version 2"),
        (lambda stored: resealed(stored[:-13] + stored[-12:]), "shorter than it says"),
        (lambda stored: resealed(stored[:12] + b"\xc1" + stored[13:]), "cannot be read"),
    ],
    ids=["cut", "short", "magic", "version", "state", "place"],
)
def test_a_damaged_snapshot_is_refused(damage: Callable[[bytes], bytes], says: str) -> None:
    stored = b"".join(encode_snapshot(FOUNDED.id, FOUNDED.configuration, (b"state",)))
    assert decode_snapshot("s", stored) == Snapshot(INITIAL_ID, VOTERS, b"state")
    with pytest.raises(CorruptMetadataError, match=says):
        decode_snapshot("s", damage(stored))


def resealed(stored: bytes) -> bytes:
    """With a checksum that fits."""
    return stored[:-4] + struct.pack("<I", crc32c(stored[:-4]))


def test_frames_are_found_behind_a_cut_one() -> None:
    frame = encode_frame([b""] * 0, generation=1, sequence=1, snapshot_id=NOTHING)
    large = encode_frame([b"x" * 5000], generation=1, sequence=2, snapshot_id=NOTHING)
    found = read_frames("f", large[:BLOCK_BYTES] + frame + bytes(BLOCK_BYTES) + large[:-4000])
    assert [each.sequence for each in found] == [1]


# --- recovery -------------------------------------------------------------------------------------


def test_a_new_disk_reserves_its_files_first(disk: Disk) -> None:
    kept, log = MetadataLog.recover({}, log_bytes=LOG_BYTES)
    actions = log.prepare()
    assert kept == Kept()
    assert actions[:2] == [Reserve(FIRST, LOG_BYTES), Reserve(SECOND, LOG_BYTES)]
    assert [type(action) for action in actions[2:]] == [Write]
    assert log.prepare() == []
    assert log.snapshot_name is None
    disk.do(actions)
    assert disk.start()[0] == Kept()


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_new_disk_that_was_not_done_is_new_again(disk: Disk, done: int) -> None:
    _, log = MetadataLog.recover({}, log_bytes=LOG_BYTES)
    disk.do(log.prepare()[:done])
    if done == 2:
        disk.put(FIRST, 0, b"TRLM torn")
    assert disk.start()[0] == Kept()
    assert disk.start()[0] == Kept()


def test_all_that_is_kept_is_found(disk: Disk) -> None:
    _, log = disk.start()
    vote = Term(4, DISK_ID)
    disk.do(log.keep([Term(3), block(1), block(2, b"payload"), Head(BlockId(1, 2))]))
    disk.do(log.keep([vote, Commit(BlockId(1, 1)), Reserved(UUID(int=9)), block(1)]))
    kept, log = disk.start()
    blocks = (block_of(1), block_of(2, b"payload"))
    assert kept == Kept(vote, None, blocks, BlockId(1, 2), BlockId(1, 1), UUID(int=9))
    disk.do(log.keep([Term(5)]))
    assert disk.start()[0].term == Term(5)


def test_a_replacement_leaves_nothing_of_before(disk: Disk) -> None:
    _, log = disk.start()
    disk.do(log.keep([Reserved(UUID(int=9)), block(1)]))
    disk.do(log.replace(FOUNDED, (Term(0),)))
    assert log.snapshot_name == "0-0.snapshot"
    assert disk.start()[0] == Kept(Term(0), FOUNDED, (), INITIAL_ID, INITIAL_ID)
    newer = Snapshot(BlockId(2, 8), VOTERS, b"newer")
    disk.do(log.replace(newer, (Term(2),)))
    assert disk.start()[0] == Kept(Term(2), newer, (), newer.id, newer.id)
    assert set(disk.files) == {*METADATA_LOGS, "2-8.snapshot"}


def test_a_replacement_by_the_same_snapshot_keeps_its_file(disk: Disk, log: MetadataLog) -> None:
    disk.do(log.replace(FOUNDED, (Term(3),)))
    assert disk.start()[0] == Kept(Term(3), FOUNDED, (), INITIAL_ID, INITIAL_ID)


def test_what_was_found_is_durable_before_it_counts(disk: Disk, log: MetadataLog) -> None:
    disk.files |= {"9-9.snapshot": b"unused", "1-1.snapshot.new": b"torn"}
    _, log = MetadataLog.recover(disk.files, log_bytes=2 * LOG_BYTES)
    assert log.prepare() == [
        Sync(SECOND),
        Reserve(FIRST, 2 * LOG_BYTES),
        Reserve(SECOND, 2 * LOG_BYTES),
        Remove("1-1.snapshot.new"),
        Remove("9-9.snapshot"),
    ]


def test_files_of_others_are_left_alone(disk: Disk) -> None:
    disk.files["other.json"] = b"{}"
    disk.start()
    assert "other.json" in disk.files
    assert [owns(name) for name in disk.files] == [False, True, True]


# --- room -----------------------------------------------------------------------------------------


def test_a_full_file_goes_on_in_the_other_without_what_is_superseded(
    disk: Disk, log: MetadataLog
) -> None:
    held_bytes = log._held.size_bytes
    for term in range(1, 100):
        actions = log.keep([Term(term), Head(BlockId(1, 3)), block(3)])
        assert len(actions) == 1
        disk.do(actions)
    assert log._held.size_bytes < held_bytes + 100
    assert disk.start()[0].term == Term(99)
    assert disk.start()[0].blocks == (block_of(3),)


def test_what_does_not_fit_is_refused(log: MetadataLog) -> None:
    for height in range(1, 4):
        log.keep([block(height, b"x" * 10_000)])
    with pytest.raises(StorageFailedError, match="free space"):
        log.keep([block(9, b"x" * 3000)])


def test_no_write_is_larger_than_a_file(log: MetadataLog) -> None:
    with pytest.raises(AssertionError):
        log.keep([block(1, b"x" * LOG_BYTES)])


# --- compaction -----------------------------------------------------------------------------------


def test_a_compaction_keeps_both_until_its_end(disk: Disk, log: MetadataLog) -> None:
    disk.do(log.keep([Term(1), *map(block, range(1, 6)), Head(BlockId(1, 5))]))
    base, head = BlockId(1, 4), BlockId(1, 5)
    disk.do(log.begin_compaction(base, [Term(1), block(5), Head(head), Commit(base)]))
    disk.do(log.keep([block(6)]))
    blocks = tuple(map(block_of, range(1, 7)))
    assert disk.start()[0] == Kept(Term(1), FOUNDED, blocks, head, base)

    snapshot = Snapshot(base, VOTERS, b"state")
    disk.files["1-4.snapshot"] = b"".join(encode_snapshot(base, VOTERS, (b"state",)))
    disk.do(log.end_compaction(base))
    assert not log.is_compacting
    assert disk.start()[0] == Kept(Term(1), snapshot, blocks[4:], head, base)
    assert set(disk.files) == {*METADATA_LOGS, "1-4.snapshot"}


def test_the_first_snapshot_has_none_to_remove(disk: Disk) -> None:
    _, log = disk.start()
    log.begin_compaction(INITIAL_ID, [Term(0)])
    assert [type(each) for each in log.end_compaction(INITIAL_ID)] == [Write]


def test_a_compaction_that_was_overtaken_leaves_no_snapshot(log: MetadataLog) -> None:
    log.keep([block(1), block(2)])
    log.begin_compaction(BlockId(1, 1), [Term(0), block(2)])
    log.replace(Snapshot(BlockId(2, 8), VOTERS, b"newer"), (Term(2),))
    assert log.end_compaction(BlockId(1, 1)) == [Remove("1-1.snapshot")]
    log.begin_compaction(BlockId(2, 9), [Term(2)])
    assert log.end_compaction(BlockId(1, 1)) == [Remove("1-1.snapshot")]
    assert log.end_compaction(BlockId(2, 8)) == []
    assert log.is_compacting


# --- damage ---------------------------------------------------------------------------------------


def test_a_last_frame_that_is_not_whole_is_dropped(disk: Disk, log: MetadataLog) -> None:
    disk.do(log.keep([Term(1)]))
    (write,) = log.keep([Term(2), block(1, b"x" * 9000)])
    assert isinstance(write, Write)
    disk.put(write.name, write.position, write.contents[: 2 * BLOCK_BYTES])
    kept, log = disk.start()
    assert kept.term == Term(1)
    disk.do(log.keep([Term(3)]))
    assert disk.start()[0].term == Term(3)


def test_a_first_frame_that_is_not_whole_leaves_the_other_file(
    disk: Disk, log: MetadataLog
) -> None:
    disk.do(log.keep([Term(1)]))
    _, write, _ = log.replace(Snapshot(BlockId(2, 8), VOTERS, b"newer"), (Term(2),))
    assert isinstance(write, Write)
    disk.put(write.name, 0, write.contents[:20])
    assert disk.start()[0].term == Term(1)


@pytest.mark.parametrize("position", [0, BLOCK_BYTES, 2 * BLOCK_BYTES])
@pytest.mark.parametrize("offset", [0, 5, 30, 50])
def test_damage_before_a_whole_frame_is_reported(
    disk: Disk, log: MetadataLog, position: int, offset: int
) -> None:
    for term in range(1, 4):
        disk.do(log.keep([Term(term)]))
    disk.flip(SECOND, position + offset)
    with pytest.raises(CorruptMetadataError, match=r"1\.blocks: .* move the data directory away"):
        disk.start()


def test_a_lost_frame_is_reported(disk: Disk, log: MetadataLog) -> None:
    """A file system gave the blocks of a later one back, and of this one not."""
    for term in range(1, 4):
        disk.do(log.keep([Term(term)]))
    frame = disk.files[SECOND][3 * BLOCK_BYTES : 4 * BLOCK_BYTES]
    disk.put(SECOND, 2 * BLOCK_BYTES, frame + bytes(BLOCK_BYTES))
    with pytest.raises(CorruptMetadataError, match="is at 8192"):
        disk.start()


@pytest.mark.parametrize("name", METADATA_LOGS)
def test_a_missing_file_is_reported(disk: Disk, log: MetadataLog, name: str) -> None:
    del disk.files[name]
    with pytest.raises(CorruptMetadataError, match=rf"{name}: it is missing"):
        disk.start()


def test_a_missing_snapshot_is_reported(disk: Disk, log: MetadataLog) -> None:
    assert log.snapshot_name is not None
    del disk.files[log.snapshot_name]
    with pytest.raises(CorruptMetadataError, match=r"0-0\.snapshot: it is missing"):
        disk.start()


def test_another_snapshot_under_its_name_is_reported(disk: Disk, log: MetadataLog) -> None:
    disk.files["0-0.snapshot"] = b"".join(encode_snapshot(BlockId(3, 3), VOTERS, ()))
    with pytest.raises(CorruptMetadataError, match="a different one"):
        disk.start()


@pytest.mark.parametrize("name", [FIRST, SECOND, "0-0.snapshot"])
def test_a_log_without_a_whole_frame_was_in_use_if_there_is_more(
    disk: Disk, log: MetadataLog, name: str
) -> None:
    empty = dict.fromkeys(METADATA_LOGS, bytes(LOG_BYTES))
    disk.files = empty | {name: b"x" * LOG_BYTES}
    with pytest.raises(CorruptMetadataError, match="no whole frame"):
        disk.start()


def test_a_version_of_the_future_is_refused(disk: Disk, log: MetadataLog) -> None:
    frame = bytearray(disk.files[SECOND][:BLOCK_BYTES])
    frame[4] = 2
    size_bytes = int.from_bytes(frame[12:16], "little")
    frame[8:12] = struct.pack("<I", crc32c(frame[12:size_bytes], crc32c(frame[:8])))
    disk.put(SECOND, 0, bytes(frame))
    with pytest.raises(CorruptMetadataError, match="format version 2; this broker reads 1"):
        disk.start()


def test_records_of_an_unknown_kind_are_reported(disk: Disk, log: MetadataLog) -> None:
    frame = encode_frame([b"\x91\xa3new"], generation=9, sequence=9, snapshot_id=NOTHING)
    disk.put(FIRST, 0, frame)
    with pytest.raises(CorruptMetadataError, match="frame at 0 cannot be read"):
        disk.start()
