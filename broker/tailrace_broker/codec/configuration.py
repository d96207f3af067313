"""The payload of a block of kind VOTERS: who votes, as msgpack of `model.agreement.Configuration`.

An array of the voters and the next voters, each an array of ordinal and incarnation (16 bytes).
"""

import msgspec

from tailrace_broker.model.agreement import Configuration
from tailrace_broker.model.errors import CorruptMetadataError

_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER = msgspec.msgpack.Decoder(Configuration)


def encode_configuration(configuration: Configuration) -> bytes:
    """The payload of a block that puts these voters in force."""
    return _ENCODER.encode(configuration)


def decode_configuration(payload: bytes) -> Configuration:
    """The voters that a block puts in force; CorruptMetadataError when it names none."""
    try:
        configuration = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptMetadataError(f"a block of voters cannot be read: {error}") from error
    if not configuration.voters:
        raise CorruptMetadataError("a block of voters names none")
    return configuration
