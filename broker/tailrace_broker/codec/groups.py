"""Records of the internal topic `__groups`: the key is the group's name, the value a fact as JSON.

`{"type": "committed", "offsets": {"<topic id>": {"<partition>": offset}}, …}`: the members of
`model.group`'s structs in camelCase. Members that a reader does not know it passes over.
"""

import msgspec

from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.model.group import Fact

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(Fact)


def encode_fact(fact: Fact) -> bytes:
    """A record's value."""
    return _encoder.encode(fact)


def decode_fact(value: bytes | memoryview) -> Fact:
    """CorruptBatchError: no fact, or of a type that this broker does not know."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBatchError(f"a record of __groups is no fact of a group: {error}") from error
