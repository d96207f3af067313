"""What brokers send each other: frames of one message each.

Little-endian: length of the body u32, CRC-32C of the body u32, body. The body is msgpack of a
`model.messages.Message`: an array of the message's tag and its fields in their order. UUIDs are
binary of 16 bytes. Fields that a reader does not know, behind those that it does, it passes over.

How a connection begins: `net/peers/handshake.py`.
"""

import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.messages import Message

FRAME_HEADER = struct.Struct("<II")
# The largest frame, header and all. Senders keep far below it (a slice of a snapshot is 64 KiB, a
# command at most 1 MiB); who reads needs no more memory than this for a connection.
FRAME_BYTES_MAX = 3 * 512 * 1024

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_frame(message: Message) -> bytes:
    """A message as it travels; CorruptFrameError when it is too large for a frame."""
    body = _encoder.encode(message)
    frame_bytes = FRAME_HEADER.size + len(body)
    if frame_bytes > FRAME_BYTES_MAX:
        raise CorruptFrameError(
            f"a message of type {type(message).__name__} makes a frame of {frame_bytes} bytes; "
            f"other brokers take at most {FRAME_BYTES_MAX}"
        )
    return FRAME_HEADER.pack(len(body), crc32c(body)) + body


def encoded_bytes(value: object) -> int:
    """Return the length of a message, or of a part of one, in a frame's body."""
    return len(_encoder.encode(value))


class FrameReader:
    """Cuts a stream into messages. Holds what is not whole yet: less than a frame."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, received: bytes) -> Iterator[Message]:
        """The messages that are whole now, to be taken to the end before the next call.

        CorruptFrameError: what follows cannot be read, the connection is of no more use.
        """
        stream: bytes | bytearray = received
        if self._rest:
            self._rest += received
            stream = self._rest
        # Its own variable: a view that is alive forbids to shorten the buffer.
        with memoryview(stream) as view:
            position = 0
            while (body_end := _body_end(view, position)) <= len(view):
                yield _message(view, position, body_end)
                position = body_end
        if stream is self._rest:
            del self._rest[:position]
        else:
            self._rest += received[position:]


def _body_end(stream: memoryview, position: int) -> int:
    """Return the end of the frame at `position`; past the stream: it is not whole yet."""
    body_start = position + FRAME_HEADER.size
    if body_start > len(stream):
        return body_start
    body_bytes, _ = FRAME_HEADER.unpack_from(stream, position)
    if FRAME_HEADER.size + body_bytes > FRAME_BYTES_MAX:
        raise CorruptFrameError(
            f"a frame of {FRAME_HEADER.size + body_bytes} bytes; at most {FRAME_BYTES_MAX} are "
            "taken: it is none, or the sender runs another version"
        )
    return body_start + int(body_bytes)


def _message(stream: memoryview, position: int, body_end: int) -> Message:
    _, crc = FRAME_HEADER.unpack_from(stream, position)
    with stream[position + FRAME_HEADER.size : body_end] as body:
        if crc32c(body) != crc:
            raise CorruptFrameError("the checksum of a frame does not match")
        try:
            return _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptFrameError(
                f"a frame holds no message that this version knows: {error}"
            ) from error
