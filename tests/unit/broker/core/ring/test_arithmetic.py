import json
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.core.ring.arithmetic import (
    TOKEN_END,
    TOKEN_MIN,
    UNIT_TOKENS,
    UNITS,
    Range,
    broker_token,
    find_slice,
    ring_order,
    ring_ranges,
    slice_bounds,
    token,
    tokens,
    zone_class,
)

# For ever: the same key must find its partition, so `--rewrite` leaves this file alone.
KEYS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[4] / "golden" / "ring_keys.json").read_text()
)


def key_of(vector: dict[str, Any]) -> bytes:
    """The key of a golden vector: text or bytes, maybe many times."""
    once = vector["text"].encode() if "text" in vector else bytes.fromhex(vector["hex"])
    return once * int(vector.get("times", 1))


def vector_id(vector: dict[str, Any]) -> str:
    """How a test run names a golden vector."""
    key = key_of(vector)
    return f"{key[:12]!r} of {len(key)}"


def test_the_token_of_a_key_never_changes() -> None:
    for vector in KEYS:
        assert str(token(key_of(vector))) == vector["token"], vector_id(vector)


def test_the_tokens_of_many_keys_are_those_of_each() -> None:
    keys = [key_of(vector) for vector in KEYS]

    assert tokens(keys).tolist() == [token(key) for key in keys]
    assert tokens([]).tolist() == []
    assert tokens(["", "Zürich"]).tolist() == tokens([b"", "Zürich".encode()]).tolist()


def test_the_broker_of_a_key_never_changes() -> None:
    for vector in KEYS:
        key_token = int(vector["token"])
        owners = {
            count: each.ordinal
            for count in vector["owners"]
            for each in ring_ranges(int(count))
            if each.start <= key_token < each.end
        }

        assert owners == vector["owners"], vector_id(vector)


def test_the_golden_keys_are_of_every_kind_and_reach_every_broker() -> None:
    keys = [key_of(vector) for vector in KEYS]

    assert len(set(keys)) == 20
    assert {0, 1, 15, 16, 17, 2**20} <= {len(key) for key in keys}
    assert sum(max(key, default=0) >= 0x80 for key in keys) >= 6
    assert all({"3", "6", "12"} <= vector["owners"].keys() for vector in KEYS)
    assert {vector["owners"]["12"] for vector in KEYS} == set(range(12))


def test_a_ring_of_one_owns_everything() -> None:
    assert ring_ranges(1) == [Range(0, TOKEN_MIN, TOKEN_END, UNITS, (0,))]


def test_a_ring_of_two_has_two_copies() -> None:
    second = broker_token(1)

    assert ring_ranges(2) == [
        Range(0, TOKEN_MIN, second, 4096, (0, 1)),
        Range(1, second, TOKEN_END, 8192, (1, 0)),
    ]


def test_the_tokens_of_brokers_never_change() -> None:
    assert [broker_token(ordinal) for ordinal in range(7)] == [
        -9223372036854775808,
        -3074457345618259968,
        3074457345618255872,
        -6148914691236517888,
        -2048,
        6148914691236513792,
        -7686143364045646848,
    ]


def test_the_zone_classes_of_brokers_never_change() -> None:
    assert [zone_class(ordinal) for ordinal in range(12)] == [0, 1, 2, 2, 0, 1, 1, 0, 2, 1, 0, 2]


@pytest.mark.parametrize(
    "order",
    [
        [0, 1, 2],
        [0, 3, 1, 2],
        [0, 3, 1, 4, 2, 5],
        [0, 6, 3, 1, 4, 2, 5],
        [0, 6, 3, 7, 1, 8, 4, 9, 2, 10, 5, 11],
    ],
    ids=len,
)
def test_each_doubling_puts_new_brokers_between_the_old_ones(order: list[int]) -> None:
    assert ring_order(len(order)) == order


def test_replicas_follow_the_leader_and_skip_the_classes_in_use() -> None:
    replicas = {each.ordinal: each.replicas for each in ring_ranges(4)}

    assert replicas == {0: (0, 3, 1), 3: (3, 1, 0), 1: (1, 2, 0), 2: (2, 0, 1)}


@pytest.mark.parametrize("broker_count", [-1, 0, UNITS + 1])
def test_a_ring_of_no_broker_or_too_many_is_our_bug(broker_count: int) -> None:
    with pytest.raises(AssertionError):
        ring_order(broker_count)


@pytest.mark.parametrize("ordinal", [-1, UNITS])
def test_an_ordinal_that_no_ring_has_is_our_bug(ordinal: int) -> None:
    with pytest.raises(AssertionError):
        broker_token(ordinal)


def test_the_slices_of_all_tokens_cover_each_once() -> None:
    for count in range(1, 257):
        bounds = slice_bounds(TOKEN_MIN, UNITS, count)

        ends = [end for _, end in bounds]
        assert [start for start, _ in bounds] == [TOKEN_MIN, *ends[:-1]]
        assert ends == sorted(set(ends))
        assert (len(ends), ends[-1]) == (count, TOKEN_END)


def test_the_slices_of_a_topic_never_change() -> None:
    assert slice_bounds(TOKEN_MIN, UNITS, 4) == [
        (-9223372036854775808, -4611686018427388928),
        (-4611686018427388928, -2048),
        (-2048, 4611686018427384832),
        (4611686018427384832, 9223372036854775808),
    ]


def test_a_range_in_the_middle_ends_where_the_next_one_starts() -> None:
    start = TOKEN_MIN + UNIT_TOKENS * 4096

    assert slice_bounds(start, 4096, 2) == [
        (start, start + UNIT_TOKENS * 2048),
        (start + UNIT_TOKENS * 2048, start + UNIT_TOKENS * 4096),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 255, 256])
def test_a_slice_is_found_at_both_of_its_ends(count: int) -> None:
    bounds = slice_bounds(TOKEN_MIN, UNITS, count)
    starts = [start for start, _ in bounds]

    assert [find_slice(starts, start) for start, _ in bounds] == list(range(count))
    assert [find_slice(starts, end - 1) for _, end in bounds] == list(range(count))


def test_a_token_below_all_slices_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        find_slice([0, 10], -1)
