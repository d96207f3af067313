"""Every format, byte for byte: what is on somebody's disk must stay readable.

The files are in `tests/golden/`; later ones have what is written otherwise since, and
the old files stay, to be read. `pytest --rewrite` writes today's; a change to one means that a
broker of today and one of yesterday do not read each other: review it as that. LZ4's and zstd's
blocks also change when another version of these compresses otherwise, which harms nobody.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.wire import JOURNAL_BLOCK_BYTES, PRODUCER_ENTRY, Codec, Flag
from tailrace_broker.codec.batch import BatchBody, stamp_batch, verify_batch
from tailrace_broker.codec.damage import decode_damage, encode_damage
from tailrace_broker.codec.groups import decode_group_event, encode_group_event
from tailrace_broker.codec.journal import (
    FRAME_HEADER_BYTES,
    JournalCut,
    JournalFileHeader,
    encode_cut,
    encode_file_header,
    encode_frame_header,
    read_file_header,
    read_frames,
)
from tailrace_broker.codec.metadata import (
    CleanStop,
    DeletionMark,
    DiskIdentity,
    KnownFiles,
    LogStart,
    decode_clean_stop,
    decode_deleted,
    decode_identity,
    decode_inventory,
    decode_log_start,
    encode_clean_stop,
    encode_deleted,
    encode_identity,
    encode_inventory,
    encode_log_start,
)
from tailrace_broker.codec.producers import (
    NO_SEQUENCE,
    ROW,
    Checkpoint,
    ProducerState,
    decode_checkpoint,
    encode_checkpoint,
)
from tailrace_broker.codec.records_binary import parse_records
from tailrace_broker.codec.segment import (
    NO_TIMESTAMP_US,
    EpochStart,
    IndexEntry,
    SegmentIndex,
    decode_index,
    encode_index,
)
from tailrace_broker.core.log.recovery import LogScan, SegmentState
from tailrace_broker.model.damage import Loss, RecordedDamage
from tailrace_broker.model.group import (
    Committed,
    Deleted,
    GroupEvent,
    GroupSnapshot,
    Joined,
    Left,
    Moved,
    Published,
    Subscription,
)
from tailrace_broker.model.ring_state import Start
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.segments.writer import index_of
from tests.support.storage.batches import (
    PARTITION,
    TIME_US,
    TOPIC_ID,
    Event,
    body_of,
    log_of,
    place_of,
    read_by_broker,
    read_by_client,
    records_body_of,
    records_of,
)
from tests.support.storage.storage import LogFiles
from tests.support.storage.topics import new_topic

FOLDER = Path(__file__).parents[3] / "golden" / "formats"

FLIGHTS = [Event(b'{"origin":"SFO","delay":%d}' % delay, key=b"SFO") for delay in (0, -3, 41)]
NULLS = [
    Event(None, key=b"a", timestamp_us=TIME_US + 3),
    Event(b"2", key=None, timestamp_us=TIME_US + 1),
    Event(b"", key=b"", timestamp_us=TIME_US + 2),
]
HEADERS = [
    Event(b"1", headers=[(b"trace", b"\x00\xff"), ("Größe".encode(), b"")]),
    Event(b"2"),
    Event(b"\xff\xfe", key=b"\x80", headers=[(b"trace", b"x")]),
]
MANY_FLIGHTS = FLIGHTS * 20
CHECKED = Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS
PRODUCER = PRODUCER_ENTRY.pack(UUID(int=9).bytes, 41, 0, 3)

# Name of the file -> what is in it and what the header says besides.
BATCHES: dict[str, tuple[list[Event], BatchBody]] = {
    "batch_json.bin": (FLIGHTS, body_of(FLIGHTS, flags=CHECKED)),
    "batch_nulls.bin": (NULLS, body_of(NULLS)),
    "batch_headers.bin": (HEADERS, body_of(HEADERS)),
    "batch_lz4.bin": (MANY_FLIGHTS, body_of(MANY_FLIGHTS, flags=CHECKED)),
    "batch_zstd.bin": (MANY_FLIGHTS, body_of(MANY_FLIGHTS, flags=CHECKED, codec=Codec.ZSTD)),
    "batch_producer_table.bin": (FLIGHTS, body_of(FLIGHTS, producer_table=PRODUCER)),
}
CODECS = {"batch_lz4.bin": Codec.LZ4, "batch_zstd.bin": Codec.ZSTD}  # the others: none
BASE_OFFSET = 5_000_000_000
PLACE = place_of(
    range_id=7,
    epoch=4,
    previous_epoch=3,
    base_offset=BASE_OFFSET,
    append_time_us=TIME_US + 5,
    high_watermark=BASE_OFFSET - 10,
)
WRITES = [
    [BATCHES["batch_json.bin"][1]],
    [BATCHES["batch_nulls.bin"][1], BATCHES["batch_headers.bin"][1]],
    [BATCHES["batch_lz4.bin"][1]],
]
SEGMENT = log_of(WRITES)
SEGMENT_EVENTS = [*FLIGHTS, *NULLS, *HEADERS, *MANY_FLIGHTS]
SEGMENT_INDEX = SegmentIndex(
    segment_bytes=len(SEGMENT.stored),
    end_offset=len(SEGMENT_EVENTS),
    last_epoch=1,
    last_append_time_us=TIME_US,
    largest_timestamp_us=TIME_US + 3,
    entries=[IndexEntry(0, 0, NO_TIMESTAMP_US)],
    epochs=[EpochStart(1, 0)],
)
LONG_INDEX = SegmentIndex(
    segment_bytes=256 * 1024 * 1024,
    end_offset=BASE_OFFSET,
    last_epoch=4,
    last_append_time_us=TIME_US,
    largest_timestamp_us=TIME_US + 1,
    entries=[
        IndexEntry(0, 0, NO_TIMESTAMP_US),
        IndexEntry(1000, 65_552, -1),
        IndexEntry(2**32 - 1, 2**28, TIME_US),
    ],
    epochs=[EpochStart(2, BASE_OFFSET - 5000), EpochStart(4, BASE_OFFSET - 1)],
)
DAMAGE = RecordedDamage(
    BASE_OFFSET,
    BASE_OFFSET + 1,
    (Loss(412, 512), Loss(BASE_OFFSET - 10, BASE_OFFSET, accepted_us=TIME_US)),
)
PRODUCERS = Checkpoint(
    BASE_OFFSET,
    [
        ProducerState(UUID(int=8).bytes, 2**40, TIME_US, b""),
        ProducerState(
            UUID(int=9).bytes,
            NO_SEQUENCE,
            TIME_US + 5,
            ROW.pack(42, BASE_OFFSET - 9, TIME_US, 3) + ROW.pack(41, BASE_OFFSET - 6, TIME_US, 6),
        ),
    ],
)
IDENTITY = DiskIdentity(
    UUID(int=1),
    ordinal=0,
    incarnation=UUID(int=2),
    boot=7,
    kernel_boot_id="0b8a14ac-7f38-4b2c-9d5a-6a1f6ee1b1c7",
    starts=(Start(UUID(int=3), "clean"), Start(UUID(int=4), "power")),
)
INVENTORY = KnownFiles(
    ("1.journal", "2.journal"),
    {TOPIC_ID: {0: 0, 2: 4711}, UUID(int=1): {1: 0}},
)
CLEAN_STOP = CleanStop(boot=7, log_ends={TOPIC_ID: [BASE_OFFSET, None, 0]})
LOG_START = LogStart(BASE_OFFSET, BASE_OFFSET - 7, epoch_before=4, append_time_before_us=TIME_US)
JOURNAL = JournalFileHeader(
    boot=7, journal_id=2**64 - 3, first_sequence=BASE_OFFSET, size_bytes=7 * JOURNAL_BLOCK_BYTES
)
# The entries of each frame, and up to which sequence all were durable.
FRAMES = [
    (["batch_json.bin", "batch_nulls.bin"], BASE_OFFSET),
    (["batch_lz4.bin"], BASE_OFFSET),
    (["batch_producer_table.bin"], BASE_OFFSET + 2),
    (["cut"], BASE_OFFSET + 3),
]
CUT = JournalCut(TOPIC_ID.bytes, PARTITION, BASE_OFFSET + 1)
OTHER_SETTINGS = TopicSettings(
    partitions_per_range=1,
    json_check=False,
    compression="zstd",
    durability="written",
    flush_ms=2,
    flush_bytes=8192,
    linger_ms=5,
    linger_bytes=65_536,
    retention_ms=86_400_000,
    retention_bytes=10 * 1024**3,
    min_in_sync_replicas=3,
)
DELETED = DeletionMark(new_topic("tuned", OTHER_SETTINGS, UUID(int=5)), deleted_us=TIME_US)

SUBSCRIPTION = Subscription("c1", "g1", ("flights", "orders"), "startFromEarliest", 30_000)
OFFSETS = {TOPIC_ID: {0: BASE_OFFSET, 3: 0}}
EVENTS: list[GroupEvent] = [
    Joined(SUBSCRIPTION, 1, OFFSETS),
    Left("c1", 2, "expired"),
    Committed(OFFSETS, lost=41, confirmed={"c1": (7 << 40) + 3}),
    Moved(OFFSETS),
    Published("spark", OFFSETS),
    Deleted(),
    GroupSnapshot(7, ((SUBSCRIPTION, 1),), OFFSETS, lost=41, confirmed={"c1": (7 << 40) + 3}),
    GroupSnapshot(0, (), OFFSETS, source="spark"),
]


def write_batch(body: BatchBody) -> bytes:
    return b"".join(stamp_batch(body, PLACE).buffers)


def write_journal() -> bytes:
    """A file of four frames, and a block behind them that was never used."""
    stored = encode_file_header(JOURNAL).ljust(JOURNAL_BLOCK_BYTES, b"\0")
    for sequence, (names, durable_sequence) in enumerate(FRAMES, start=BASE_OFFSET):
        contents = b"".join(
            encode_cut(CUT) if name == "cut" else write_batch(BATCHES[name][1]) for name in names
        )
        header = encode_frame_header(
            frame_bytes=FRAME_HEADER_BYTES + len(contents),
            journal_id=JOURNAL.journal_id,
            sequence=sequence,
            durable_sequence=durable_sequence,
            entry_count=len(names),
        )
        stored += header + contents
        stored += bytes(-len(stored) % JOURNAL_BLOCK_BYTES)
    return stored + bytes(JOURNAL_BLOCK_BYTES)


ENCODED: dict[str, Callable[[], bytes]] = {
    **{name: partial(write_batch, body) for name, (_, body) in BATCHES.items()},
    "segment.log": lambda: log_of(WRITES).stored,
    "records.bin": lambda: encode_records(
        [event.key for event in NULLS],
        [event.value for event in NULLS],
        [event.timestamp_us for event in NULLS],
    ),
    "records_headers.bin": lambda: records_body_of(HEADERS),
    "producers": lambda: encode_checkpoint(PRODUCERS),
    "damage": lambda: encode_damage(DAMAGE),
    "0.journal": write_journal,
    "log-start.json": lambda: encode_log_start(LOG_START),
    "groups.ndjson": lambda: b"".join(encode_group_event(event) + b"\n" for event in EVENTS),
    "meta.json": lambda: encode_identity(IDENTITY),
    "inventory.json": lambda: encode_inventory(INVENTORY),
    "clean-stop.json": lambda: encode_clean_stop(CLEAN_STOP),
    "segment.idx": lambda: encode_index(SEGMENT_INDEX),
    "long.idx": lambda: encode_index(LONG_INDEX),
    "topic.json": lambda: encode_deleted(DELETED),
}


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.fixture(scope="module", autouse=True)
def _rewrite(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("rewrite"):
        for name, encode in ENCODED.items():
            (FOLDER / name).write_bytes(encode())


@pytest.mark.parametrize("name", ENCODED)
def test_the_encoder_writes_exactly_these_bytes(name: str) -> None:
    assert golden(name) == ENCODED[name]()


def test_every_file_of_the_folder_is_tested() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(ENCODED)


@pytest.mark.parametrize("name", BATCHES)
def test_the_broker_reads_the_batches(name: str) -> None:
    events, body = BATCHES[name]
    batch = golden(name)
    header = verify_batch(memoryview(batch))

    assert header.flags == body.flags
    assert header.codec == CODECS.get(name, Codec.NONE)
    assert read_by_broker(batch) == records_of(events, BASE_OFFSET)


@pytest.mark.parametrize("name", BATCHES)
def test_the_client_reads_the_same_records_as_the_broker(name: str) -> None:
    batch = golden(name)

    assert read_by_client(batch, BASE_OFFSET) == read_by_broker(batch)


def test_the_producer_table_comes_back() -> None:
    header = verify_batch(memoryview(stored := golden("batch_producer_table.bin")))

    assert header.producer_table_bytes == PRODUCER_ENTRY.size
    assert PRODUCER_ENTRY.unpack_from(stored, 128) == (UUID(int=9).bytes, 41, 0, 3)


def test_the_record_of_damage_is_read() -> None:
    assert decode_damage(golden("damage")) == DAMAGE


def test_the_checkpoint_of_producers_is_read() -> None:
    assert decode_checkpoint(golden("producers")) == PRODUCERS


def test_the_segment_holds_what_was_written_and_ends_where_its_index_says() -> None:
    stored = golden("segment.log")
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))

    scan.feed(memoryview(stored), is_last=True)

    assert index_of(scan.state) == decode_index(golden("segment.idx")) == SEGMENT_INDEX
    starts = [fetch_range.start for fetch_range in SEGMENT.pieces if fetch_range.header]
    records = [record for start in starts for record in read_by_broker(stored, start)]
    assert records == records_of(SEGMENT_EVENTS, 0)


def test_the_segment_writer_puts_exactly_these_files_on_disk(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    writer = files.writer(segment_bytes=len(SEGMENT.stored))
    for bodies in [*WRITES, WRITES[0]]:  # the last one goes to the next segment
        writer.write(bodies)
    writer.close()

    contents = files.contents()
    assert contents["00000000000000000000.log"] == golden("segment.log")
    assert contents["00000000000000000000.idx"] == golden("segment.idx")


def test_the_journal_holds_what_was_written() -> None:
    stored = memoryview(golden("0.journal"))
    header = read_file_header(stored)
    frames = read_frames(stored, JOURNAL.journal_id, JOURNAL.first_sequence)

    assert header == JOURNAL
    assert [frame.sequence - BASE_OFFSET for frame in frames] == [0, 1, 2, 3]
    for frame, (names, durable_sequence) in zip(frames, FRAMES, strict=True):
        assert frame.durable_sequence == durable_sequence
        batches = [golden(name) for name in names if name != "cut"]
        assert [bytes(batch) for _, batch in frame.batches] == batches
        assert frame.cuts == ((CUT,) if "cut" in names else ())


def test_an_index_of_many_entries_is_read() -> None:
    assert decode_index(golden("long.idx")) == LONG_INDEX


@pytest.mark.parametrize(
    ("name", "events"), [("records.bin", NULLS), ("records_headers.bin", HEADERS)]
)
def test_a_records_binary_body_is_read(name: str, events: list[Event]) -> None:
    records = parse_records(golden(name))

    assert records.keys == [event.key for event in events]
    assert records.values == [event.value for event in events]
    assert records.timestamps_us is not None
    assert records.timestamps_us.tolist() == [event.timestamp_us for event in events]
    pairs = [pair for event in events for pair in event.headers]
    read = records.headers
    assert (list(zip(read.keys, read.values, strict=True)) if read else []) == pairs
    if read:
        assert read.counts.tolist() == [len(event.headers) for event in events]


def test_the_json_files_are_read() -> None:
    assert decode_identity(golden("meta.json")) == IDENTITY
    assert decode_inventory(golden("inventory.json")) == INVENTORY
    assert decode_clean_stop(golden("clean-stop.json")) == CLEAN_STOP
    assert decode_log_start(golden("log-start.json")) == LOG_START
    assert decode_deleted(golden("topic.json")) == DELETED


def test_the_events_of_groups_are_read() -> None:
    assert [decode_group_event(line) for line in golden("groups.ndjson").splitlines()] == EVENTS
