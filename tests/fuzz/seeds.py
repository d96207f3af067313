"""Good inputs, from which fuzzing starts."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from tailrace.protocol.records_binary import encode_records
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JOURNAL_BLOCK_BYTES,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    align_up,
)
from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.codec.journal import (
    FRAME_HEADER_BYTES,
    JournalFileHeader,
    encode_file_header,
    encode_frame_header,
)
from tailrace_broker.codec.metadata import (
    CleanStop,
    LogStart,
    encode_clean_stop,
    encode_log_start,
)
from tailrace_broker.codec.peer import FRAME_HEADER, encode_frame
from tailrace_broker.codec.producers import (
    ROW,
    Checkpoint,
    ProducerState,
    Row,
    TableEntry,
    encode_checkpoint,
    encode_table,
)
from tailrace_broker.codec.replication import FRAME_HEADER as REPLICATION_HEADER
from tailrace_broker.codec.replication import encode_head
from tailrace_broker.model.agreement import (
    COMMAND,
    Block,
    BlockId,
    Configuration,
    DiskId,
    Snapshot,
)
from tailrace_broker.model.forwarding import (
    AppendAnswers,
    CallAnswer,
    CallFailed,
    CallPart,
    FailedRequest,
    ForwardedBatch,
    ForwardedCall,
    ForwardedEvent,
    ForwardedEvents,
    StoredAppend,
    TurnOf,
)
from tailrace_broker.model.messages import Append, Bootstrapped, Digest, Hint
from tailrace_broker.model.replication import (
    Batches,
    Cuts,
    EpochStart,
    LogCut,
    LogKey,
    LogStanding,
    Run,
    Standing,
)
from tailrace_broker.model.ring_state import Replica
from tailrace_broker.net.peers.handshake import (
    NONCE_BYTES,
    PROOF_BYTES,
    Handshake,
    PeerIdentity,
    Side,
)
from tests.support.http.http11 import chunked, get, messages, new_topic, old, records, request
from tests.support.storage.batches import Event, batch_of, body_of, log_of, place_of

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"
JOURNAL_ID = 77


def golden(pattern: str) -> list[bytes]:
    """The files of the formats."""
    return [path.read_bytes() for path in sorted(GOLDEN.glob(pattern))]


def journal_file(frames: Sequence[Sequence[bytes]]) -> bytes:
    """A file of a journal with a frame for each of these lists of batches."""
    header = JournalFileHeader(boot=1, journal_id=JOURNAL_ID, first_sequence=1, size_bytes=0)
    stored = encode_file_header(header).ljust(JOURNAL_BLOCK_BYTES, b"\0")
    for sequence, batches in enumerate(frames, start=1):
        frame_bytes = FRAME_HEADER_BYTES + sum(map(len, batches))
        head = encode_frame_header(
            frame_bytes=frame_bytes,
            journal_id=JOURNAL_ID,
            sequence=sequence,
            durable_sequence=sequence,
            entry_count=len(batches),
        )
        frame = b"".join([head, *batches])
        stored += frame.ljust(align_up(frame_bytes, JOURNAL_BLOCK_BYTES), b"\0")
    return stored


EVENTS = [Event(b'{"a":1}'), Event(None, None), Event(b"x" * 300, b"k", headers=[(b"h", b"v")])]
BATCHES = [
    batch_of([Event(b"1")]),
    batch_of(EVENTS),
    batch_of([Event(b"%d" % number) for number in range(100)], base_offset=7),
]
SEGMENTS = [
    log_of([[body_of(EVENTS)], [body_of([Event(b"2")]), body_of([Event(b"3" * 9000)])]]).stored,
    log_of([[body_of([Event(b"%d" % number)])] for number in range(5)]).stored + bytes(8192),
]
PRODUCER_TABLE = encode_table([TableEntry(bytes(16), 7, 0, 2)])
PRODUCER_BATCH = b"".join(
    stamp_batch(body_of(EVENTS, producer_table=PRODUCER_TABLE), place_of()).buffers
)
CHECKPOINT = encode_checkpoint(
    Checkpoint(9, [ProducerState(bytes(16), 3, 5, ROW.pack(*Row(4, 8, 5, 1)))])
)
PEER_DISK = DiskId(1, UUID(int=2))
PEER_BLOCK = Block(BlockId(2, 5), BlockId(1, 4), COMMAND, b"command")
PEER_LOG = LogKey(UUID(int=7), 3)
PEER_MESSAGES = [
    encode_frame(message)[FRAME_HEADER.size :]
    for message in (
        Append(3, PEER_DISK, BlockId(1, 4), (PEER_BLOCK,), BlockId(1, 3), 9),
        Digest(PEER_DISK, (Hint(1, UUID(int=2), 3, 400, 70_000),), 3, 1),
        Bootstrapped(
            PEER_DISK, UUID(int=3), Snapshot(BlockId(0, 0), Configuration((PEER_DISK,)), b"state")
        ),
    )
]
REPLICATION_HEADS = [
    encode_head(message)[REPLICATION_HEADER.size :]
    for message in (
        Standing(1, 5, 2, Replica(2, 9), (LogStanding(PEER_LOG, 0, 10, (EpochStart(4, 0),)),)),
        Cuts(1, 5, 2, (LogCut(PEER_LOG, 8, 4, False, 8, 0),)),
        Batches(1, 5, 2, PEER_LOG, 4, (Run(5, 10, 20),), 10, 0),
        ForwardedEvents(
            1,
            (TurnOf(PEER_LOG, 2),),
            (
                ForwardedEvent(0, b"{}", b"k", 5, 3, b"p" * 16, 7),
                ForwardedEvent(0, b"1", None, 5, 3, b"", 0),
            ),
        ),
        ForwardedBatch(3, TurnOf(PEER_LOG, 2), b"p" * 16, 7, 2, 0, 1, 90, 5, 6, 7),
        ForwardedCall(1, b"/v1/offsets?topic=t", "application/json"),
        ForwardedCall(
            2,
            b"/v1/consumer/poll?consumerId=c",
            "application/json",
            "POST",
            "application/json",
            ((b"tailrace-delivery", b"7"),),
            b"{}",
        ),
        CallAnswer(1, 200, "application/json", {"tailrace-epoch": "1"}, True),
        CallPart(1, True),
        CallFailed(FailedRequest(1, "NoLeaderError", "later", {}, False)),
        AppendAnswers(
            (StoredAppend(1, 5, False, 3),),
            (FailedRequest(3, "NotLeaderError", "ask", {"leader": 1, "children": [2]}, False),),
        ),
    )
]
PEER_HANDSHAKES = [
    Handshake(
        Side.DIALLER, PeerIdentity(1, UUID(int=2)), secret=b"", nonce=bytes(NONCE_BYTES), wanted=0
    ).first_words()
    + bytes(PROOF_BYTES)
]
LOG_START = encode_log_start(LogStart(7, 5, 1, 2))
CLEAN_STOP = encode_clean_stop(CleanStop(1, {UUID(int=1): [3, None]}))
JOURNAL = journal_file([BATCHES[:1], BATCHES[1:], BATCHES])
OFFER = {"connection": "upgrade", "upgrade": "h2c"}
LARGE = b'"%s"' % (b"x" * 17_000)
REQUESTS = [
    request(messages("kept", partitionKey="k"), b'{"a":1}'),
    request(messages("kept"), LARGE),
    chunked(messages("kept", partitionKey="k"), b"[", b"1,2", b"]"),
    request(messages("kept"), b'1\n\n"two"\r\n[3]', content_type=NDJSON_CONTENT_TYPE),
    request(
        messages("kept"),
        encode_records([b"a", b""], [b"1", None]),
        content_type=RECORDS_CONTENT_TYPE,
    ),
    request(messages("kept", partition=0), BATCHES[1], content_type=BATCH_CONTENT_TYPE),
    request(messages("kept", partitionKey="k", timestamp=10**15), b"1", expect="100-continue"),
    request(messages("kept"), b"1", **OFFER),
    old(get("/live"), b"connection: keep-alive\r\n"),
    get(records("kept", offset=0, maxRecords=10)),
    get(records("kept", 1, offset="latest", waitMs=100), accept=BATCH_CONTENT_TYPE),
    get(records("kept", timestamp="2001-02-03T04:05+01:00"), accept="application/json"),
    get("/v1/topic/kept/records?last=3"),
    get("/v1/offsets?topic=kept&timestamp=1000000000000000"),
    get("/v1/topics/kept"),
    new_topic("other", partitions=2),
    request("/v1/topics/kept", b'{"jsonCheck":false}', method="PATCH"),
    request("/v1/topics/other", b"", method="DELETE"),
    get("/v1/brokers"),
    get("/v1/openapi.json"),
    get("/v1/problems/topic-not-found"),
]
