"""Frames on port 9256: between the leader of a range and its followers, and to forward requests.

Little-endian: head bytes u32, payload bytes u32, CRC-32C u32 of these eight bytes and the head; the
head; the payload. The head is a tag u8, the index of the message's type in `_TYPES`, and msgpack of
a value of `model.replication` or `model.forwarding`: an array of its fields in their order, UUIDs
as binary of 16 bytes.

Some types have a payload. `Batches`: whole stored batches as they are on the leader's disk, each
with its own checksums (`codec/batch.py`). `ForwardedBatch`: the compressed payload of one batch.
`CallAnswer` and `CallPart`: of the body of an answer. So bytes pass without being encoded again.
How a connection begins: `net/peers/handshake.py`.
"""

import struct
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from tailrace.wire import Codec
from tailrace_broker.codec.columns import PAYLOAD_BYTES_MAX
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.forwarding import (
    AppendAnswers,
    CallAnswer,
    CallCancelled,
    CallFailed,
    CallMore,
    CallPart,
    ForwardedBatch,
    ForwardedCall,
    ForwardedEvents,
    ToForwarder,
    ToServer,
)
from tailrace_broker.model.replication import (
    Batches,
    Credit,
    Cuts,
    Heartbeat,
    Reported,
    Restart,
    Standing,
    ToFollower,
    ToLeader,
)

Message = ToLeader | ToFollower | Credit | ToServer | ToForwarder

FRAME_HEADER = struct.Struct("<III")
# What a follower says of 4,000 logs with 20 epochs each takes half of it.
HEAD_BYTES_MAX = 4 * 1024 * 1024
# The largest batch: what does not compress, with its header and its table of producers.
BATCH_BYTES_MAX = PAYLOAD_BYTES_MAX + PAYLOAD_BYTES_MAX // 4
# Most frames of a turn of the loop fit; a larger payload gets memory of its own.
BUFFER_BYTES = 64 * 1024

_TYPES: tuple[type[Message], ...] = (
    Standing, Reported, Cuts, Batches, Heartbeat, Restart, Credit,
    ForwardedEvents, ForwardedBatch, AppendAnswers,
    ForwardedCall, CallMore, CallCancelled, CallAnswer, CallPart, CallFailed,
)  # fmt: skip
_ID_SIZES = (0, 16)  # of a producer's id
_CODECS = frozenset(map(int, Codec))
_WITH_PAYLOAD = (Batches, ForwardedBatch, CallAnswer, CallPart)
_TAGS = {kind: bytes([tag]) for tag, kind in enumerate(_TYPES)}
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoders: list[msgspec.msgpack.Decoder[Any]] = [msgspec.msgpack.Decoder(each) for each in _TYPES]


class LinkFrame(NamedTuple):
    """A message, with its payload if it has one."""

    message: Message
    payload: memoryview


def encode_head(message: Message, payload_bytes: int = 0) -> bytes:
    """Return the part of the message's frame before the payload.

    CorruptFrameError: the message is too large for a frame.
    """
    assert payload_bytes == 0 or isinstance(message, _WITH_PAYLOAD)
    head = _TAGS[type(message)] + _encoder.encode(message)
    if len(head) > HEAD_BYTES_MAX or payload_bytes > BATCH_BYTES_MAX:
        raise CorruptFrameError(
            f"a message of type {type(message).__name__} has {len(head)} bytes and a payload of "
            f"{payload_bytes}; at most {HEAD_BYTES_MAX} and {BATCH_BYTES_MAX} are taken"
        )
    sizes = FRAME_HEADER.pack(len(head), payload_bytes, 0)[:8]
    return sizes + crc32c(head, crc32c(sizes)).to_bytes(4, "little") + head


class FrameParser:
    """Cuts a stream into frames, without a copy of a payload that is larger than `BUFFER_BYTES`.

    The next bytes of the stream go to the start of `buffer()`; `received` takes them in.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._end = 0  # of what is in the buffer: less than a frame, between two calls
        self._message: Message | None = None  # whose payload comes
        self._payload = memoryview(b"")
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        return self._buffer[self._end :] if self._message is None else self._payload[self._filled :]

    def received(self, count: int) -> list[LinkFrame]:
        """Return the frames that are whole with these bytes.

        CorruptFrameError: what follows cannot be read, and the connection is of no more use.
        """
        if self._message is None:
            self._end += count
            return self._take()
        self._filled += count
        if self._filled < len(self._payload):
            return []
        frame = LinkFrame(self._message, self._payload)
        self._message = None
        return [frame]

    def _take(self) -> list[LinkFrame]:
        """Take the frames out of the buffer, and move the rest to its start."""
        frames: list[LinkFrame] = []
        start = 0
        while self._end - start >= FRAME_HEADER.size:
            head_start = start + FRAME_HEADER.size
            head_bytes, payload_bytes, crc = FRAME_HEADER.unpack_from(self._buffer, start)
            _check_sizes(head_bytes, payload_bytes)
            head_end = head_start + head_bytes
            if head_end > self._end:
                self._make_room(start, FRAME_HEADER.size + head_bytes)
                return frames
            sizes = self._buffer[start : start + 8]
            message = _decode_head(sizes, self._buffer[head_start:head_end], crc)
            if payload_bytes and not isinstance(message, _WITH_PAYLOAD):
                raise CorruptFrameError("a message that takes no payload has one")
            start = head_end + payload_bytes
            if start > self._end:
                self._begin_payload(message, head_end, payload_bytes)
                return frames
            frames.append(LinkFrame(message, memoryview(bytes(self._buffer[head_end:start]))))
        self._make_room(start, 0)
        return frames

    def _make_room(self, start: int, wanted_bytes: int) -> None:
        """Keep what is in the buffer from `start` on; it will hold `wanted_bytes` at least."""
        rest = bytes(self._buffer[start : self._end])
        size = max(wanted_bytes, BUFFER_BYTES)
        if size != len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._buffer[: len(rest)] = rest
        self._end = len(rest)

    def _begin_payload(self, message: Message, start: int, size: int) -> None:
        """Have the rest of a payload read into its own memory."""
        self._message = message
        self._payload = memoryview(bytearray(size))
        self._filled = self._end - start
        self._payload[: self._filled] = self._buffer[start : self._end]
        self._end = 0


def _check_sizes(head_bytes: int, payload_bytes: int) -> None:
    if not 1 < head_bytes <= HEAD_BYTES_MAX or payload_bytes > BATCH_BYTES_MAX:
        raise CorruptFrameError(
            f"a frame with {head_bytes} bytes and a payload of {payload_bytes}; at most "
            f"{HEAD_BYTES_MAX} and {BATCH_BYTES_MAX} are taken: it is none, or the sender runs "
            "another version"
        )


def _decode_head(sizes: memoryview, head: memoryview, crc: int) -> Message:
    if crc32c(head, crc32c(sizes)) != crc:
        raise CorruptFrameError("the checksum of a frame does not match")
    tag = head[0]
    if tag >= len(_decoders):
        raise CorruptFrameError(f"a frame holds a message of type {tag}, which is not known here")
    try:
        message: Message = _decoders[tag].decode(head[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFrameError(
            f"a frame holds no message that this version knows: {error}"
        ) from error
    _check_forwarded(message)
    return message


def _check_forwarded(message: Message) -> None:
    """Check what its reader takes for granted."""
    if isinstance(message, ForwardedEvents):
        is_good = all(0 <= event.place < len(message.places) for event in message.events)
        is_good = is_good and all(len(event.producer_id) in _ID_SIZES for event in message.events)
    elif isinstance(message, ForwardedBatch):
        is_good = (
            message.record_count > 0
            and message.codec in _CODECS
            and len(message.producer_id) in _ID_SIZES
        )
    else:
        return
    if not is_good:
        raise CorruptFrameError(f"a {type(message).__name__} names what it does not have")
