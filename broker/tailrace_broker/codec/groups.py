"""Records of the internal topic `__groups`: a group's name as key, a group event as JSON value.

`{"type": "committed", "offsets": {"<topic id>": {"<partition>": offset}}, …}`: the members of
`model.group`'s structs in camelCase. Members that a reader does not know it passes over. A record
`inherited` has no key: it is of the partition, which follows others over a step of the ring.
"""

import msgspec

from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.model.group import GroupRecord

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[GroupRecord] = msgspec.json.Decoder(GroupRecord)


def encode_group_event(event: GroupRecord) -> bytes:
    """Return a record's value."""
    return _encoder.encode(event)


def decode_group_event(value: bytes | memoryview) -> GroupRecord:
    """CorruptBatchError: no group event, or of a type that this broker does not know."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBatchError(f"a record of __groups is no event of a group: {error}") from error
