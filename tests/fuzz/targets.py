"""What is fuzzed: each target takes any bytes, and may only raise what it declares."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from crc32c import crc32c

from tailrace.arrow.batches import decode_batches
from tailrace.errors import TailraceError as ClientError
from tailrace.wire import HEADER, HEADER_BYTES, BatchHeader
from tailrace_broker.codec import replication
from tailrace_broker.codec.batch import decompress_payload, stamp_batch, verify_batch
from tailrace_broker.codec.journal import JournalFileHeader, read_file_header, read_frames
from tailrace_broker.codec.metadata import (
    decode_clean_stop,
    decode_deleted,
    decode_identity,
    decode_inventory,
    decode_log_start,
)
from tailrace_broker.codec.peer import FRAME_HEADER, FrameReader, encode_frame
from tailrace_broker.codec.producers import decode_checkpoint
from tailrace_broker.codec.ready_batch import parse_ready_batch
from tailrace_broker.codec.records import CutColumns, column_lines, cut_columns
from tailrace_broker.codec.records_binary import parse_records
from tailrace_broker.codec.segment import decode_index
from tailrace_broker.core.log.journal_replay import JournalRound, plan_replay
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.model.errors import TailraceError as BrokerError
from tailrace_broker.net.peers.handshake import NONCE_BYTES, Handshake, PeerIdentity, Side
from tailrace_broker.storage.inspection import frames_in, lines_in, pieces_in
from tests.fuzz.http_target import FAST_DIRECTORY, http_listener
from tests.fuzz.seeds import (
    BATCHES,
    CHECKPOINT,
    CLEAN_STOP,
    JOURNAL,
    JOURNAL_ID,
    LOG_START,
    PEER_HANDSHAKES,
    PEER_MESSAGES,
    PRODUCER_BATCH,
    REPLICATION_HEADS,
    REQUESTS,
    SEGMENTS,
    golden,
)
from tests.support.storage.batches import place_of, read_by_broker, read_by_client
from tests.support.storage.storage import LogFiles

# The end of the year 9999.
TIME_END_US = 253_402_300_800_000_000

# Takes any bytes; raises when they are not handled as declared.
Check = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds`: good inputs; `opened`: what takes any."""

    name: str
    seeds: Sequence[bytes]
    opened: Callable[[], AbstractContextManager[Check]]


def _declared(work: Callable[[bytes], object]) -> Callable[[], AbstractContextManager[Check]]:
    """What may raise the errors of the broker, or of the client, and no others."""

    def check(data: bytes) -> None:
        with suppress(BrokerError, ClientError):
            work(data)

    return lambda: nullcontext(check)


def _read_stored_batch(data: bytes) -> None:
    """As the broker reads a batch for an answer in JSON."""
    stored = memoryview(data)
    header = verify_batch(stored)
    cut = cut_columns(header, decompress_payload(header, stored))
    # The only thing that a broker has checked before it stores a batch, and not in its columns.
    known = [row for row in zip(*cut, strict=True) if 0 <= row[0] < TIME_END_US]
    if known:
        columns = CutColumns(*map(list, zip(*known, strict=True)))
        column_lines(header.partition, header.base_offset, columns, values_are_json=False)


def _produce_ready_batch(data: bytes) -> None:
    """What the broker takes, it and its clients can read."""
    body = parse_ready_batch(data)
    batch = b"".join(stamp_batch(body, place_of()).buffers)
    assert len(read_by_broker(batch)) == body.record_count
    assert len(read_by_client(batch, 0)) == body.record_count


def _read_answer(data: bytes) -> None:
    """As clients read batches."""
    first = data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
    start = BatchHeader._make(HEADER.unpack(first)).base_offset
    for rows in decode_batches(data, topic="t", start=start, include_headers=True):
        rows.validate(full=True)


def _replay_journal(data: bytes) -> None:
    """One file of a journal, at a start."""
    stored = memoryview(data)
    header = read_file_header(stored)
    known = header or JournalFileHeader(1, JOURNAL_ID, first_sequence=0, size_bytes=0)
    frames = read_frames(stored, known.journal_id, known.first_sequence)
    plan_replay([JournalRound(0, header, frames)])


def _replay_producers(data: bytes) -> None:
    """The producer table of a stored batch."""
    stored = memoryview(data)
    header = verify_batch(stored)
    table = stored[HEADER_BYTES : HEADER_BYTES + header.producer_table_bytes]
    windows = ProducerWindows()
    windows.replay(header, table)
    windows.validate()


def _read_peer_message(data: bytes) -> None:
    """Of another broker: as the body of a frame, and as a stream. What is read can be sent on."""
    frame = FRAME_HEADER.pack(len(data), crc32c(data)) + data
    with suppress(BrokerError):
        list(FrameReader().feed(data))
    for message in FrameReader().feed(frame):
        assert list(FrameReader().feed(encode_frame(message))) == [message]


def _read_replication_head(data: bytes) -> None:
    """Of a leader or a follower: as a head, and as a stream. What is read can be sent on."""
    sizes = replication.FRAME_HEADER.pack(len(data), 0, 0)[:8]
    with suppress(BrokerError):
        _replication_messages(data)
    for message in _replication_messages(sizes + crc32c(sizes + data).to_bytes(4, "little") + data):
        assert _replication_messages(replication.encode_head(message)) == [message]


def _replication_messages(stream: bytes) -> list[replication.Message]:
    reader, messages = replication.FrameParser(), []
    while stream:
        room = reader.buffer()
        part, stream = stream[: len(room)], stream[len(room) :]
        room[: len(part)] = part
        messages += [frame.message for frame in reader.received(len(part))]
    return messages


def _shake_hands(data: bytes) -> None:
    """Nobody gets in who does not know the secret."""
    nonce = bytes(NONCE_BYTES)
    for side, wanted in ((Side.DIALLER, 1), (Side.ACCEPTOR, None)):
        me = PeerIdentity(0, None)
        handshake = Handshake(side, me, secret=b"unknown", nonce=nonce, wanted=wanted)
        with suppress(BrokerError):
            handshake.feed(data)
        assert handshake.peer is None


def _dump_segment(data: bytes) -> None:
    """`tailrace dump` of a segment takes any damage."""
    file = BytesIO(data)
    for piece in pieces_in(file, len(data)):
        if piece.is_whole and piece.header is not None:
            lines_in(file, piece)


def _dump_journal(data: bytes) -> None:
    """The same of a journal file."""
    list(frames_in(BytesIO(data)))


@contextmanager
def _recovery() -> Iterator[Check]:
    """A segment file of any contents: what is recovered is readable, and recovered again."""
    with TemporaryDirectory(dir=FAST_DIRECTORY) as directory:

        def check(data: bytes) -> None:
            files = LogFiles(Path(directory))
            files.write_segment(data)
            with suppress(BrokerError):
                assert files.values() == files.values()

        yield check


TARGETS = [
    Target("http", REQUESTS, http_listener),
    Target("records", golden("records*.bin"), _declared(parse_records)),
    Target("ready-batch", BATCHES, _declared(_produce_ready_batch)),
    Target("stored-batch", BATCHES, _declared(_read_stored_batch)),
    Target("producer-table", [PRODUCER_BATCH], _declared(_replay_producers)),
    Target("answer", [*BATCHES, b"".join(BATCHES[:2])], _declared(_read_answer)),
    Target("segment", SEGMENTS, _recovery),
    Target("journal", [JOURNAL], _declared(_replay_journal)),
    Target("index", golden("*.idx"), _declared(decode_index)),
    Target("producers", [CHECKPOINT], _declared(decode_checkpoint)),
    Target("meta", golden("meta.json"), _declared(decode_identity)),
    Target("inventory", golden("inventory.json"), _declared(decode_inventory)),
    Target("topic", golden("topic.json"), _declared(decode_deleted)),
    Target("log-start", [LOG_START], _declared(decode_log_start)),
    Target("clean-stop", [CLEAN_STOP], _declared(decode_clean_stop)),
    Target("peer-message", PEER_MESSAGES, _declared(_read_peer_message)),
    Target("replication-head", REPLICATION_HEADS, _declared(_read_replication_head)),
    Target("peer-handshake", PEER_HANDSHAKES, _declared(_shake_hands)),
    Target("dump-segment", SEGMENTS, _declared(_dump_segment)),
    Target("dump-journal", [JOURNAL], _declared(_dump_journal)),
]
