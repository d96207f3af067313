import struct
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from tailrace_broker.codec import ring_snapshot
from tailrace_broker.codec.ring_snapshot import decode_state, encode_slices, encode_state
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.commands import DeleteTopic, Lead, Stamped
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.ring_state import Refusal, RingState
from tests.support.ring.states import (
    begin,
    done,
    founded,
    led,
    register,
    sealed,
    stepped,
    with_topic,
)


def rich_state() -> RingState:
    """Of everything something: lineage, a deleted topic, a ghost, a refusal, a step with an end."""
    state = stepped(with_topic(led(registered=3), written=True))
    state = with_topic(with_topic(state, "late", partitions=3), "gone")
    state = done(state, DeleteTopic("gone", 55), register(5, "power"))
    state = begin(apply_command(state, Stamped(-5, Lead(0, 1, 0, 1))))
    assert state.step is not None
    return done(state, sealed(state, state.step.parents[0], 500))


GOLDEN = Path(__file__).parents[3] / "golden" / "ring.snapshot"
RICH = rich_state()
STORED = encode_state(RICH)


@pytest.mark.parametrize("state", [RICH, founded(), founded(1, 1), begin(led(registered=1))])
def test_a_state_comes_back_from_its_snapshot(state: RingState) -> None:
    assert decode_state(encode_state(state)) == state


def test_a_step_comes_back_of_which_a_range_without_partitions_is_sealed() -> None:
    state = begin(led(4, registered=1))
    assert state.step is not None
    state = done(state, sealed(state, state.step.parents[0]))

    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize("partitions_max", [1, 2, 5, 7, 4000])
@pytest.mark.parametrize("rows_max", [1, 2, 500])
def test_a_snapshot_is_the_same_state_however_it_is_cut(
    partitions_max: int, rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_snapshot, "_PART_PARTITIONS", partitions_max)
    monkeypatch.setattr(ring_snapshot, "_PART_ROWS", rows_max)
    slices = list(encode_slices(RICH))

    restored = decode_state(b"".join(slices))

    assert restored == RICH
    assert list(restored.topics) == list(RICH.topics)
    assert list(restored.recent) == list(RICH.recent)


def test_a_large_topic_is_cut_into_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_snapshot, "_PART_PARTITIONS", 256)
    state = with_topic(led(12), partitions=256)

    slices = list(encode_slices(state))

    assert sum(b"topics" in slice_ for slice_ in slices) >= 12
    assert decode_state(b"".join(slices)) == state


def test_topics_with_the_same_slices_share_them_in_memory() -> None:
    state = with_topic(with_topic(led()), "flights")

    restored = decode_state(encode_state(state))

    one, other = restored.topics["orders"], restored.topics["flights"]
    assert one.slices[0].starts is other.slices[0].starts


def test_a_snapshot_begins_with_its_magic_and_version() -> None:
    assert STORED[:8] == b"TRLM" + bytes([2, 0, 0, 0])


@pytest.mark.timeout(30)
def test_every_truncation_is_refused() -> None:
    for size_bytes in range(len(STORED)):
        with pytest.raises(CorruptMetadataError, match="a snapshot of the ring is damaged"):
            decode_state(STORED[:size_bytes])


@given(st.integers(0, len(STORED) * 8 - 1))
def test_a_flipped_bit_is_found(bit: int) -> None:
    damaged = bytearray(STORED)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(CorruptMetadataError):
        decode_state(bytes(damaged))


@given(st.binary(max_size=200))
def test_what_is_no_snapshot_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptMetadataError):
        decode_state(stored)
    with pytest.raises(CorruptMetadataError):
        decode_state(STORED[:8] + part(stored))


def test_the_bytes_of_a_snapshot_are_those_that_disks_have(pytestconfig: pytest.Config) -> None:
    """A change to the file means that a broker of yesterday does not read today's snapshot."""
    state = replace(RICH, recent={5: None, 6: Refusal("stale-epoch", "range 0 is in epoch 2")})
    if pytestconfig.getoption("rewrite"):
        GOLDEN.write_bytes(encode_state(state))

    assert decode_state(GOLDEN.read_bytes()) == state
    assert encode_state(state) == GOLDEN.read_bytes()


def part(body: bytes) -> bytes:
    size = struct.pack("<I", len(body))
    return size + struct.pack("<I", crc32c(body, crc32c(size))) + body


def parts(*bodies: object) -> bytes:
    return STORED[:8] + b"".join(part(msgpack.encode(body)) for body in bodies)


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        pytest.param(STORED + b"\0", "more or less", id="something behind it"),
        pytest.param(parts(["end", 0]), "first part is missing", id="nothing in it"),
        pytest.param(parts(["brokers", []], ["end", 0]), "more or less", id="a part too many"),
        pytest.param(parts(["end", 1]), "more or less", id="a part too few"),
        pytest.param(parts(["other", 1]), "cannot be read", id="an unknown part"),
        pytest.param(STORED[:4] + b"\1" + STORED[5:], "version", id="another version"),
        pytest.param(
            parts(["topics", [[None, ["a", UUID(int=1).bytes, {"flushMs": 0}, [], 0]]]]),
            "flushMs",
            id="settings that cannot be",
        ),
    ],
)
def test_a_snapshot_that_does_not_add_up_is_refused(stored: bytes, what: str) -> None:
    with pytest.raises(CorruptMetadataError, match=what):
        decode_state(stored)
