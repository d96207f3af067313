"""Commands to the replicated state, as the log of the ring's metadata holds them.

Version 3: a byte, 3, then MessagePack of `model.commands.Stamped`: `[id, ["<tag>", fields …]]`,
fields in the order of the class, UUIDs as 16 bytes. Fields are only ever added at the end, with a
default; what a reader does not know there it passes over.
"""

import msgspec

from tailrace_broker.model.commands import Stamped
from tailrace_broker.model.errors import CallerError, CorruptMetadataError

COMMAND_VERSION = 3

_PREFIX = bytes([COMMAND_VERSION])
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(Stamped)


def encode_command(stamped: Stamped) -> bytes:
    """Return the bytes of a command in a block."""
    return _PREFIX + _encoder.encode(stamped)


def decode_command(stored: bytes) -> Stamped:
    """Read it again; CorruptMetadataError, also for one that this version does not know."""
    if stored[:1] != _PREFIX:
        raise CorruptMetadataError(
            f"a command of the ring is of version {stored[:1].hex()}; this broker reads "
            f"{_PREFIX.hex()}"
        )
    try:
        return _decoder.decode(memoryview(stored)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CallerError) as error:
        raise CorruptMetadataError(f"a command of the ring cannot be read: {error}") from error
