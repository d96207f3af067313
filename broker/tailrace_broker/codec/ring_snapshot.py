"""A snapshot of a ring's committed state (`model.ring_state.RingState`), written bit by bit.

Version 2, little-endian: magic u32 `TRLM`, version u32, then parts back to back, each: length of
its body u32, CRC-32C u32 of the length and the body, the body. A body is MessagePack of an array
that begins with the name of the part; structs are arrays of their fields in the order of the class,
settings of topics are maps in camelCase, UUIDs 16 bytes:

| part      | then                                                                              |
|-----------|-----------------------------------------------------------------------------------|
| `ring`    | `RingState`, without what the other parts hold                                    |
| `brokers` | array of `Registration`                                                           |
| `ranges`  | array of `RangeState`                                                             |
| `topics`  | array of `[deleted_us or nil, TopicState]`; one with many partitions comes more   |
|           | than once in a row, with different slices                                         |
| `ends`    | id of a range that is sealed in the open step, map of the ends by topic id        |
| `recent`  | array of `[command id, Refusal or nil]`, oldest first                             |
| `end`     | how many parts came before; nothing is behind it                                  |

Fields are only ever added at the end of a struct, with a default.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar, assert_never
from uuid import UUID

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from tailrace_broker.model.errors import CallerError, CorruptMetadataError
from tailrace_broker.model.ring_state import (
    DeletedTopic,
    RangeState,
    Refusal,
    Registration,
    RingState,
    Slices,
    TopicState,
)

SNAPSHOT_MAGIC = int.from_bytes(b"TRLM", "little")
SNAPSHOT_VERSION = 2

# Bounds what one part costs to encode: some ms on a slow core.
_PART_PARTITIONS = 4000
_PART_ROWS = 500

_FILE = struct.Struct("<II")
_PART = struct.Struct("<II")
_LENGTH = struct.Struct("<I")

_Row = tuple[int | None, TopicState]
T = TypeVar("T")


class _Part(msgspec.Struct, frozen=True, array_like=True):
    pass


class _Ring(_Part, frozen=True, tag="ring"):
    state: RingState


class _Brokers(_Part, frozen=True, tag="brokers"):
    brokers: tuple[Registration, ...]


class _Ranges(_Part, frozen=True, tag="ranges"):
    ranges: tuple[RangeState, ...]


class _Topics(_Part, frozen=True, tag="topics"):
    rows: tuple[_Row, ...]


class _Ends(_Part, frozen=True, tag="ends"):
    range_id: int
    ends: dict[UUID, tuple[int, ...]]


class _Recent(_Part, frozen=True, tag="recent"):
    outcomes: tuple[tuple[int, Refusal | None], ...]


class _End(_Part, frozen=True, tag="end"):
    part_count: int


_StatePart = _Ring | _Brokers | _Ranges | _Topics | _Ends | _Recent
_AnyPart = _StatePart | _End
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[_AnyPart] = msgspec.msgpack.Decoder(_AnyPart)


def encode_slices(state: RingState) -> Iterator[bytes]:
    """The snapshot, one part after the other; each is made when it is asked for."""
    yield _FILE.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION)
    count = 0
    for part in _parts(state):
        count += 1
        yield _frame(part)
    yield _frame(_End(count))


def encode_state(state: RingState) -> bytes:
    """The snapshot as a whole."""
    return b"".join(encode_slices(state))


def decode_state(stored: bytes) -> RingState:
    """Read a snapshot; CorruptMetadataError, also when something is missing or behind it."""
    reading = _Reading()
    for part in _read_parts(stored):
        reading.take(part)
    return reading.state()


# --- writing ---


def _parts(state: RingState) -> Iterator[_StatePart]:
    step = state.step
    yield _Ring(
        replace(
            state,
            brokers={},
            ranges={},
            topics={},
            deleted={},
            recent={},
            step=None if step is None else replace(step, sealed={}),
        )
    )
    yield from map(_Brokers, _chunks(state.brokers.values()))
    yield from map(_Ranges, _chunks(state.ranges.values()))
    yield from map(_Topics, _topic_chunks(state))
    for range_id, ends in () if step is None else step.sealed.items():
        yield _Ends(range_id, {})  # named, even if there are no topics
        for some in _chunks(ends.items()):
            yield _Ends(range_id, dict(some))
    yield from map(_Recent, _chunks(state.recent.items()))


def _chunks(rows: Iterable[T]) -> Iterator[tuple[T, ...]]:
    left = iter(rows)
    while chunk := tuple(islice(left, _PART_ROWS)):
        yield chunk


def _topic_chunks(state: RingState) -> Iterator[tuple[_Row, ...]]:
    """Rows up to a number of partitions; a topic that goes over it is cut into several rows."""
    chunk: list[_Row] = []
    room = _PART_PARTITIONS
    for row in _rows(state):
        deleted_us, topic = row
        begin = 0
        for index, slices in enumerate(topic.slices, 1):
            room -= len(slices.starts)
            if room <= 0:
                chunk.append((deleted_us, replace(topic, slices=topic.slices[begin:index])))
                yield tuple(chunk)
                chunk, room, begin = [], _PART_PARTITIONS, index
        if begin == 0:
            chunk.append(row)
        elif begin < len(topic.slices):
            chunk.append((deleted_us, replace(topic, slices=topic.slices[begin:])))
        room -= 1
    if chunk:
        yield tuple(chunk)


def _rows(state: RingState) -> Iterator[_Row]:
    for topic in state.topics.values():
        yield None, topic
    for deleted in state.deleted.values():
        yield deleted.deleted_us, deleted.topic


def _frame(part: _AnyPart) -> bytes:
    body = _encoder.encode(part)
    return _PART.pack(len(body), _checksum(body)) + body


def _checksum(body: bytes | memoryview) -> int:
    checksum: int = crc32c(body, crc32c(_LENGTH.pack(len(body))))
    return checksum


# --- reading ---


class _Reading:
    """Puts the parts together."""

    def __init__(self) -> None:
        self._ring: RingState | None = None
        self._brokers: dict[int, Registration] = {}
        self._ranges: dict[int, RangeState] = {}
        self._topics: dict[str, TopicState] = {}
        self._deleted: dict[UUID, DeletedTopic] = {}
        self._ends: dict[int, dict[UUID, tuple[int, ...]]] = {}
        self._recent: dict[int, Refusal | None] = {}
        # Topics of a ring share a few shapes: in memory they are one object each.
        self._starts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def take(self, part: _StatePart) -> None:
        """Take the next part."""
        match part:
            case _Ring():
                self._ring = part.state
            case _Brokers():
                self._brokers |= {broker.ordinal: broker for broker in part.brokers}
            case _Ranges():
                self._ranges |= {range_.id: range_ for range_ in part.ranges}
            case _Topics():
                for deleted_us, topic in part.rows:
                    self._take_topic(deleted_us, topic)
            case _Ends():
                self._ends.setdefault(part.range_id, {}).update(part.ends)
            case _Recent():
                self._recent |= dict(part.outcomes)
            case _:
                assert_never(part)

    def state(self) -> RingState:
        """Return the state that the parts make up."""
        if self._ring is None:
            raise _corrupt("its first part is missing")
        step = self._ring.step
        return replace(
            self._ring,
            brokers=self._brokers,
            ranges=self._ranges,
            topics=self._topics,
            deleted=self._deleted,
            step=None if step is None else replace(step, sealed=self._ends),
            recent=self._recent,
        )

    def _take_topic(self, deleted_us: int | None, topic: TopicState) -> None:
        slices = tuple(map(self._sharing, topic.slices))
        if deleted_us is None:
            if topic.name in self._topics:
                slices = self._topics[topic.name].slices + slices
            self._topics[topic.name] = replace(topic, slices=slices)
        else:
            if topic.id in self._deleted:
                slices = self._deleted[topic.id].topic.slices + slices
            self._deleted[topic.id] = DeletedTopic(replace(topic, slices=slices), deleted_us)

    def _sharing(self, slices: Slices) -> Slices:
        starts = self._starts.setdefault(slices.starts, slices.starts)
        return slices if starts is slices.starts else replace(slices, starts=starts)


def _read_parts(stored: bytes) -> Iterator[_StatePart]:
    """All but the last, which must be there and right."""
    view = memoryview(stored)
    if len(view) < _FILE.size:
        raise _corrupt("it is too short")
    magic, version = _FILE.unpack_from(view)
    if magic != SNAPSHOT_MAGIC or version != SNAPSHOT_VERSION:
        raise _corrupt(f"magic or version does not fit ({version}; this broker reads 2)")
    position, count = _FILE.size, 0
    while True:
        part, position = _read_part(view, position)
        if isinstance(part, _End):
            break
        count += 1
        yield part
    if part.part_count != count or position != len(view):
        raise _corrupt("it has more or less than it says")


def _read_part(view: memoryview, position: int) -> tuple[_AnyPart, int]:
    if position + _PART.size > len(view):
        raise _corrupt("its end is missing")
    length, checksum = _PART.unpack_from(view, position)
    start, end = position + _PART.size, position + _PART.size + length
    if end > len(view):
        raise _corrupt("its end is missing")
    body = view[start:end]
    if checksum != _checksum(body):
        raise _corrupt(f"the part at byte {position} does not match its checksum")
    try:
        return _decoder.decode(body), end
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CallerError) as error:
        raise _corrupt(f"the part at byte {position} cannot be read: {error}") from error


def _corrupt(what: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"a snapshot of the ring is damaged: {what}; another broker, or an older snapshot, has it"
    )
