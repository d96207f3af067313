"""Frames between brokers."""

import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.peer import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FrameReader,
    encode_frame,
    encoded_bytes,
)
from tailrace_broker.model.agreement import (
    COMMAND,
    EMPTY,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    DiskId,
    Snapshot,
)
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.messages import (
    Append,
    AppendAnswered,
    BootstrapAnswered,
    BootstrapAsked,
    Bootstrapped,
    CommandForwarded,
    Digest,
    Follow,
    Hint,
    Message,
    ReadAnswered,
    ReadAsked,
    SliceTaken,
    SnapshotSlice,
    VoteAnswered,
    VoteAsked,
)

counts = st.integers(0, 2**62)
terms = st.integers(-1, 2**40)
payloads = st.binary(max_size=60)
disks = st.builds(DiskId, st.integers(0, 12_287), st.uuids())
ids = st.builds(BlockId, terms, terms)
blocks = st.builds(Block, ids, ids, st.sampled_from([EMPTY, VOTERS, COMMAND]), payloads)
configurations = st.builds(
    Configuration, st.lists(disks, max_size=3).map(tuple), st.lists(disks, max_size=3).map(tuple)
)
snapshots = st.builds(Snapshot, ids, configurations, payloads)
hints = st.builds(Hint, st.integers(0, 12_287), st.uuids(), counts, counts, terms)
KINDS: dict[type, st.SearchStrategy[Message]] = {
    VoteAsked: st.builds(VoteAsked, terms, disks, ids, st.booleans()),
    VoteAnswered: st.builds(VoteAnswered, terms, disks, st.booleans(), st.booleans()),
    Append: st.builds(
        Append, terms, disks, ids, st.lists(blocks, max_size=3).map(tuple), ids, counts
    ),
    AppendAnswered: st.builds(AppendAnswered, terms, disks, st.booleans(), ids, ids, counts),
    SnapshotSlice: st.builds(
        SnapshotSlice, terms, disks, ids, configurations, counts, counts, payloads, counts
    ),
    SliceTaken: st.builds(SliceTaken, terms, disks, ids, counts, counts),
    Follow: st.builds(Follow, terms, disks, ids),
    CommandForwarded: st.builds(CommandForwarded, disks, payloads),
    ReadAsked: st.builds(ReadAsked, disks, counts),
    ReadAnswered: st.builds(ReadAnswered, disks, counts, terms),
    BootstrapAsked: st.builds(BootstrapAsked, disks, st.uuids()),
    BootstrapAnswered: st.builds(
        BootstrapAnswered,
        disks,
        st.uuids(),
        counts,
        st.uuids(),
        st.booleans(),
        st.none() | snapshots,
    ),
    Bootstrapped: st.builds(Bootstrapped, disks, st.uuids(), snapshots),
    Digest: st.builds(
        Digest, disks, st.lists(hints, max_size=20).map(tuple), terms, st.none() | counts
    ),
}
messages = st.one_of(*KINDS.values())

SENDER = DiskId(1, UUID(int=2))
SMALL = ReadAsked(SENDER, 7)


def framed(body: bytes) -> bytes:
    return FRAME_HEADER.pack(len(body), crc32c(body)) + body


def read(stream: bytes) -> list[Message]:
    return list(FrameReader().feed(stream))


def test_every_kind_of_message_is_tried() -> None:
    assert set(KINDS) == set(Message.__args__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_is_read_as_it_was_sent(kind: type) -> None:
    @given(KINDS[kind])
    def check(message: Message) -> None:
        (received,) = read(encode_frame(message))

        assert received == message
        assert type(received) is kind

    check()


@given(st.lists(messages, max_size=8), st.lists(st.integers(0, 2000), max_size=12))
def test_a_stream_may_come_in_any_pieces(sent: list[Message], cuts: list[int]) -> None:
    stream = b"".join(map(encode_frame, sent))
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    reader = FrameReader()

    received = [
        message for start, end in pairwise(places) for message in reader.feed(stream[start:end])
    ]
    assert received == sent


@given(messages, st.data())
def test_a_frame_that_is_cut_is_waited_for(message: Message, data: st.DataObject) -> None:
    frame = encode_frame(message)
    cut = data.draw(st.integers(0, len(frame) - 1))
    reader = FrameReader()

    assert list(reader.feed(frame[:cut])) == []
    assert list(reader.feed(frame[cut:])) == [message]


@given(messages, st.data())
def test_a_flipped_bit_is_found(message: Message, data: st.DataObject) -> None:
    """Or it makes the frame longer, and the rest is waited for."""
    frame = bytearray(encode_frame(message))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    received: list[Message] = []
    with suppress(CorruptFrameError):
        received = read(bytes(frame))
    assert received == []


def test_a_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    with pytest.raises(CorruptFrameError, match=f"at most {FRAME_BYTES_MAX} are taken"):
        read(FRAME_HEADER.pack(FRAME_BYTES_MAX - FRAME_HEADER.size + 1, 0))


def test_the_largest_frame_is_taken() -> None:
    payload_bytes = FRAME_BYTES_MAX - len(encode_frame(CommandForwarded(SENDER, bytes(70_000))))
    largest = CommandForwarded(SENDER, bytes(70_000 + payload_bytes))
    frame = encode_frame(largest)

    assert len(frame) == FRAME_BYTES_MAX
    assert read(frame) == [largest]


def test_a_message_that_makes_a_larger_frame_is_refused() -> None:
    with pytest.raises(CorruptFrameError, match="type CommandForwarded makes a frame of"):
        encode_frame(CommandForwarded(SENDER, bytes(FRAME_BYTES_MAX)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([99, SENDER, 7]),
        msgspec.msgpack.encode([9, SENDER]),
        msgspec.msgpack.encode([9, SENDER, "7"]),
        msgspec.msgpack.encode([9, [1, b"short"], 7]),
        msgspec.msgpack.encode({"message": 9}),
        msgspec.msgpack.encode(SMALL) + b"\0",
        b"\x91" * 100_000,
    ],
    ids=["empty", "none", "tag", "few", "type", "uuid", "map", "more", "deep"],
)
def test_a_body_that_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptFrameError, match="holds no message that this version knows"):
        read(framed(body))


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert read(framed(msgspec.msgpack.encode([9, SENDER, 7, "later"]))) == [SMALL]


def test_messages_before_a_corrupt_frame_are_read() -> None:
    stream = FrameReader().feed(encode_frame(SMALL) + framed(b"\xc1"))

    assert next(stream) == SMALL
    with pytest.raises(CorruptFrameError):
        next(stream)


def test_a_frame_on_the_wire() -> None:
    """Byte for byte: other versions read it."""
    assert encode_frame(SMALL).hex() == (
        "17000000" + "af0d3dcf" + "9309" + "9201" + "c410" + "00" * 15 + "02" + "07"
    )


def test_the_documents_name_every_message_by_its_tag() -> None:
    document = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()
    text = document.partition("\n## Between brokers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \| ([A-Z][\w, ]+) \| [a-z]", text, re.MULTILINE)
    reported = {
        int(tag): name
        for tags, names in rows
        for tag, name in zip(tags.split(","), names.split(", "), strict=True)
    }

    assert reported == {kind.__struct_config__.tag: kind.__name__ for kind in KINDS}  # type: ignore[attr-defined]


def test_a_message_is_as_long_as_reported() -> None:
    assert encoded_bytes(SMALL) == len(encode_frame(SMALL)) - FRAME_HEADER.size
