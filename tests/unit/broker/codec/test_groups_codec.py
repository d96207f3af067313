"""The records of `__groups`; byte for byte: test_golden."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.groups import decode_group_event, encode_group_event
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.model.group import (
    Committed,
    Deleted,
    GroupRecord,
    GroupsInherited,
    GroupSnapshot,
    Joined,
    Left,
    Moved,
    Published,
    Subscription,
)

names = st.text(max_size=10)
numbers = st.integers(0, 2**62)
offsets = st.dictionaries(
    st.uuids(), st.dictionaries(st.integers(0, 2**31), numbers, max_size=3), max_size=3
)
subscriptions = st.builds(
    Subscription,
    names,
    names,
    st.lists(names, max_size=3).map(tuple),
    st.sampled_from(["startFromLatest", "startFromEarliest"]),
    numbers,
)
members = st.lists(st.tuples(subscriptions, numbers), max_size=3).map(tuple)
events: st.SearchStrategy[GroupRecord] = st.one_of(
    st.builds(Joined, subscriptions, numbers, offsets),
    st.builds(Left, names, numbers, st.sampled_from(["goodbye", "expired"])),
    st.builds(Committed, offsets, numbers),
    st.builds(Moved, offsets),
    st.builds(Published, names, offsets),
    st.just(Deleted()),
    st.just(GroupsInherited()),
    st.builds(GroupSnapshot, numbers, members, offsets, numbers, st.none() | names),
)
JOINED = Joined(Subscription("c1", "g", ("flights",)), 3, {UUID(int=5): {0: 12}})


@given(events)
def test_every_group_event_comes_back(event: GroupRecord) -> None:
    encoded = encode_group_event(event)

    assert decode_group_event(encoded) == event
    assert decode_group_event(memoryview(encoded)) == event


def test_a_member_that_is_not_known_is_passed_over() -> None:
    stored = encode_group_event(JOINED).replace(b'"epoch"', b'"added":[{"a":1}],"epoch"')

    assert decode_group_event(stored) == JOINED


def test_what_may_be_missing_has_a_default() -> None:
    assert decode_group_event(b'{"type":"committed","offsets":{}}') == Committed({}, lost=0)
    assert decode_group_event(
        b'{"type":"snapshot","epoch":1,"members":[],"offsets":{}}'
    ) == GroupSnapshot(1, (), {}, lost=0, source=None)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"moved"}',
        b'{"type":"forgotten"}',
        b'{"type":"moved","offsets":{"flights":{"0":1}}}',
        b'{"type":"moved","offsets":{"00000000-0000-0000-0000-000000000005":{"a":1}}}',
        b'{"type":"moved","offsets":{"00000000-0000-0000-0000-000000000005":{"0":1.5}}}',
        b'{"type":"left","consumerId":"c1","epoch":1,"reason":"bored"}',
        b'{"type":"published","source":"\xff","offsets":{}}',
        b'{"type":"deleted","added":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda stored: repr(stored[:40]),
)
def test_what_is_no_group_event_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptBatchError, match="no event of a group"):
        decode_group_event(stored)


@given(events, st.data())
def test_damage_is_refused_or_another_group_event(event: GroupRecord, data: st.DataObject) -> None:
    stored = bytearray(encode_group_event(event))
    index = data.draw(st.integers(0, len(stored) - 1))
    stored[index] = data.draw(st.integers(0, 255))

    try:
        found = decode_group_event(bytes(stored[: data.draw(st.integers(index, len(stored)))]))
    except CorruptBatchError:
        return
    assert decode_group_event(encode_group_event(found)) == found
