"""Frames between a leader and its followers."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.replication import (
    BATCH_BYTES_MAX,
    BUFFER_BYTES,
    FRAME_HEADER,
    HEAD_BYTES_MAX,
    FrameParser,
    LinkFrame,
    Message,
    encode_head,
)
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.forwarding import (
    AppendAnswers,
    CallAnswer,
    CallCancelled,
    CallFailed,
    CallMore,
    CallPart,
    ErrorMembers,
    FailedRequest,
    ForwardedBatch,
    ForwardedCall,
    ForwardedEvent,
    ForwardedEvents,
    InheritedAppend,
    StoredAppend,
    TurnOf,
)
from tailrace_broker.model.replication import (
    Batches,
    Credit,
    Cuts,
    EpochStart,
    Heartbeat,
    LogCut,
    LogHead,
    LogKey,
    LogReport,
    LogStanding,
    Reported,
    Restart,
    Run,
    Standing,
)
from tailrace_broker.model.ring_state import Cause, Replica

KEY = LogKey(UUID(int=7), 3)
BATCHES = Batches(1, 5, 2, KEY, 4, (Run(5, 10, 20),), 10, 0)

counts = st.integers(0, 2**62)
keys = st.builds(LogKey, st.uuids(), st.integers(0, 2**31))
causes = st.sampled_from((None, *get_args(Cause)))
replicas = st.builds(Replica, st.integers(0, 12_287), counts, st.booleans(), causes, counts)
starts = st.lists(st.builds(EpochStart, counts, counts), max_size=3).map(tuple)
standings = st.builds(LogStanding, keys, counts, counts, starts)
reports = st.builds(LogReport, keys, counts, counts)
cuts = st.builds(LogCut, keys, counts, st.integers(-1, 2**62), st.booleans(), counts, counts)
runs = st.lists(st.builds(Run, counts, counts, counts), max_size=3).map(tuple)
heads = st.builds(LogHead, keys, counts, counts)
places = st.builds(TurnOf, keys, counts)
producer_ids = st.just(b"") | st.binary(min_size=16, max_size=16)
times = st.integers(-(2**63), 2**63 - 1)
events = st.builds(
    ForwardedEvents,
    counts,
    st.tuples(places, places),
    st.lists(
        st.builds(
            ForwardedEvent,
            st.integers(0, 1),
            st.binary(max_size=9),
            st.none() | st.binary(max_size=9),
            times,
            st.integers(0, 2**16 - 1),
            producer_ids,
            counts,
        ),
        max_size=3,
    ).map(tuple),
)
failures = st.builds(
    FailedRequest,
    counts,
    st.text(max_size=9),
    st.text(max_size=9),
    st.dictionaries(
        st.text(max_size=9), st.text(max_size=9) | counts | st.booleans() | st.lists(counts)
    ),
    st.booleans(),
)
messages = st.one_of(
    st.builds(
        Standing, counts, counts, counts, replicas, st.lists(standings, max_size=3).map(tuple)
    ),
    st.builds(
        Reported,
        counts,
        counts,
        counts,
        replicas,
        st.lists(reports, max_size=3).map(tuple),
        st.booleans(),
        round=counts,
    ),
    st.builds(Cuts, counts, counts, counts, st.lists(cuts, max_size=3).map(tuple)),
    st.builds(Heartbeat, counts, counts, counts, st.lists(heads, max_size=3).map(tuple), counts),
    st.builds(Restart, counts, counts, counts),
    st.builds(Credit, counts),
    events,
    st.builds(
        AppendAnswers,
        st.lists(st.builds(StoredAppend, counts, counts, st.booleans(), counts)).map(tuple),
        st.lists(failures, max_size=3).map(tuple),
        st.lists(st.builds(InheritedAppend, counts, counts, counts), max_size=3).map(tuple),
    ),
    st.builds(
        ForwardedCall,
        counts,
        st.binary(max_size=9),
        st.text(max_size=9),
        st.sampled_from(["GET", "POST"]),
        st.text(max_size=9),
        st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=2).map(tuple),
        st.binary(max_size=9),
    ),
    st.builds(CallMore, counts),
    st.builds(CallCancelled, counts),
    st.builds(CallFailed, failures),
)
parts = st.one_of(
    st.builds(
        CallAnswer,
        counts,
        counts,
        st.text(max_size=9),
        st.dictionaries(st.text(max_size=9), st.text(max_size=9)),
        st.booleans(),
    ),
    st.builds(CallPart, counts, st.booleans()),
)
forwarded = st.builds(
    ForwardedBatch,
    counts,
    places,
    producer_ids,
    counts,
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.sampled_from([0, 1, 2]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    times,
    times,
)
batches = st.builds(Batches, counts, counts, counts, keys, st.just(-1), runs, counts, counts)
frames = st.one_of(
    st.tuples(messages, st.just(b"")),
    st.tuples(batches | forwarded | parts, st.binary(max_size=200)),
    st.tuples(batches, st.integers(0, 3 * BUFFER_BYTES).map(bytes)),
)


def encode(message: Message, payload: bytes = b"") -> bytes:
    return encode_head(message, len(payload)) + payload


def feed(reader: FrameParser, stream: bytes, *, step: int | None = None) -> Iterator[LinkFrame]:
    """As a socket does: what fits, at most `step` bytes at a time."""
    while stream:
        room = reader.buffer()
        part = stream[: min(len(room), step or len(room))]
        room[: len(part)] = part
        yield from reader.received(len(part))
        stream = stream[len(part) :]


@given(st.lists(frames, max_size=5), st.integers(1, 2 * BUFFER_BYTES))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(
    sent: list[tuple[Message, bytes]], step: int
) -> None:
    stream = b"".join(encode(message, payload) for message, payload in sent)

    read = [
        (frame.message, bytes(frame.payload)) for frame in feed(FrameParser(), stream, step=step)
    ]
    assert read == sent


def test_a_failure_travels_with_each_kind_of_member() -> None:
    members: ErrorMembers = {"topic": "t", "lastOffset": 7, "accepted": True, "children": [1, 2]}
    failed = CallFailed(FailedRequest(7, "CorruptPartitionError", "gone", members, False))

    [frame] = feed(FrameParser(), encode(failed))

    assert frame.message == failed


def test_a_frame_byte_for_byte() -> None:
    """docs/protocol.md."""
    stream = encode(Credit(5))

    head = b"\x06\x91\x05"
    sizes = b"\x03\0\0\0" + b"\0\0\0\0"
    assert stream == sizes + crc32c(sizes + head).to_bytes(4, "little") + head


def test_the_documents_name_every_message_by_its_tag() -> None:
    document = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()
    text = document.partition("\n## Between a leader and its followers\n")[2].partition("\n## ")[0]
    reported = re.findall(r"^\| (\d+) \| ([A-Z]\w+) \|", text, re.MULTILINE)

    kinds: tuple[type[Message], ...] = (
        *(Standing, Reported, Cuts, Batches, Heartbeat, Restart, Credit),
        *(ForwardedEvents, ForwardedBatch, AppendAnswers),
        *(ForwardedCall, CallMore, CallCancelled, CallAnswer, CallPart, CallFailed),
    )
    assert reported == [(str(tag), kind.__name__) for tag, kind in enumerate(kinds)]
    assert encode_head(Credit(1))[FRAME_HEADER.size] == kinds.index(Credit)


def test_a_payload_of_its_own_memory_is_not_copied() -> None:
    reader = FrameParser()
    payload = bytes(range(256)) * 1024
    stream = encode(BATCHES, payload)
    head_bytes = len(stream) - len(payload)
    assert list(feed(reader, stream[: head_bytes + 5])) == []

    room = reader.buffer()
    assert len(room) == len(payload) - 5
    room[:] = payload[5:]
    (frame,) = reader.received(len(room))
    assert frame.message == BATCHES
    assert bytes(frame.payload) == payload
    assert frame.payload.obj is room.obj


def test_a_head_that_is_larger_than_the_buffer_is_read_and_the_buffer_shrinks_again() -> None:
    logs = tuple(LogReport(LogKey(UUID(int=n), n), n, n) for n in range(4_000))
    large = Reported(1, 5, 2, Replica(1, 3), logs, is_whole=True)
    reader = FrameParser()

    read = [frame.message for frame in feed(reader, encode(large) + encode(Credit(1)))]
    assert read == [large, Credit(1)]
    assert len(reader.buffer()) == BUFFER_BYTES


def test_messages_that_no_reader_takes_are_not_sent() -> None:
    logs = (LogHead(KEY, 2**62, 2**62),) * 120_000
    with pytest.raises(CorruptFrameError, match="Heartbeat has"):
        encode_head(Heartbeat(1, 5, 2, logs))
    with pytest.raises(CorruptFrameError, match=f"at most {HEAD_BYTES_MAX} and {BATCH_BYTES_MAX}"):
        encode_head(BATCHES, BATCH_BYTES_MAX + 1)


def test_a_payload_may_be_as_large_as_a_batch() -> None:
    head = encode_head(BATCHES, BATCH_BYTES_MAX)

    assert list(feed(FrameParser(), head)) == []  # it waits for the payload


def framed(head: bytes, payload_bytes: int = 0) -> bytes:
    """With a checksum that fits."""
    sizes = FRAME_HEADER.pack(len(head), payload_bytes, 0)[:8]
    return sizes + crc32c(sizes + head).to_bytes(4, "little") + head


CAUSE_NOT_UTF_8 = b"\x00\x95\x01\x01\x01\x95\x01\x01\xc2\xa1\xee\x00\x90"


@pytest.mark.parametrize(
    ("stream", "detail"),
    [
        (b"GET / HTTP/1.1\r\n", "it is none, or the sender runs another version"),
        (FRAME_HEADER.pack(1, 0, 0), "a frame with 1 bytes"),
        (FRAME_HEADER.pack(2, BATCH_BYTES_MAX + 1, 0), f"a payload of {BATCH_BYTES_MAX + 1}"),
        (encode(Credit(5))[:-1] + b"\x06", "the checksum of a frame does not match"),
        (framed(b"\x06\x91\x05", payload_bytes=1), "a message that takes no payload has one"),
        (framed(b"\x1f\x91\x05"), "a message of type 31, which is not known here"),
        (framed(b"\x06\x91"), "no message that this version knows"),
        (framed(b"\x06\x91\xa1x"), "no message that this version knows"),
        (framed(CAUSE_NOT_UTF_8), "no message that this version knows"),
        (framed(b"\x06" + b"\x91" * 100_000), "no message that this version knows"),
    ],
)
def test_what_is_no_frame_ends_the_stream(stream: bytes, detail: str) -> None:
    with pytest.raises(CorruptFrameError, match=re.escape(detail)):
        list(feed(FrameParser(), stream))


@given(batches, st.binary(min_size=1, max_size=50), st.data())
def test_no_flipped_bit_of_a_head_passes(
    message: Batches, payload: bytes, data: st.DataObject
) -> None:
    stream = bytearray(encode(message, payload))
    bit = data.draw(st.integers(0, 8 * (len(stream) - len(payload)) - 1))
    stream[bit // 8] ^= 1 << bit % 8

    with suppress(CorruptFrameError):
        assert list(feed(FrameParser(), bytes(stream))) == []  # it waits for a longer head


EVENT = ForwardedEvent(0, b"{}", None, 0, 0, b"", 0)
EVENTS = ForwardedEvents(1, (TurnOf(KEY, 1),), (EVENT,))
BATCH = ForwardedBatch(1, TurnOf(KEY, 1), b"", 0, 1, 0, 0, 8, 0, 0, 0)


@pytest.mark.parametrize(
    "message",
    [
        EVENTS._replace(events=(EVENT, EVENT._replace(place=1))),
        EVENTS._replace(events=(EVENT._replace(place=-1),)),
        EVENTS._replace(events=(EVENT._replace(producer_id=b"short"),)),
        EVENTS._replace(events=(EVENT._replace(flags=2**16),)),
        EVENTS._replace(events=(EVENT._replace(timestamp_us=2**63),)),
        BATCH._replace(record_count=0),
        BATCH._replace(codec=9),
        BATCH._replace(producer_id=b"short"),
        BATCH._replace(payload_crc=2**32),
    ],
)
def test_a_forwarded_request_that_no_broker_could_append_is_refused(message: Message) -> None:
    with pytest.raises(CorruptFrameError, match=r"names what|no message"):
        list(feed(FrameParser(), encode(message)))


@pytest.mark.parametrize("message", [EVENTS, BATCH])
def test_a_forwarded_request_that_a_broker_can_append_is_read(message: Message) -> None:
    assert [frame.message for frame in feed(FrameParser(), encode(message))] == [message]
