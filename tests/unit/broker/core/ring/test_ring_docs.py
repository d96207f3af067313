"""docs/ring.md, figure by figure: what the code says is what the page says."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path

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
    zone_class,
)
from tailrace_broker.core.ring.steps import overlaps, plan_step
from tests.support.murmur3 import cassandra_token

PAGE = (Path(__file__).parents[5] / "docs" / "ring.md").read_text()
SLICES = 4
# Its hash is the smallest there is: worked out backwards.
SMALLEST = bytes.fromhex("ee961629b0b5ad1d319e18e83892dbed")

Rows = list[list[object]]


def listed(values: tuple[int, ...] | list[int]) -> str:
    """As the page writes a row of ordinals."""
    return ", ".join(map(str, values))


def orders() -> Rows:
    return [[size, listed(ring_order(size))] for size in (3, 6, 12)]


def ranges(size: int) -> Rows:
    return [
        [
            each.ordinal,
            zone_class(each.ordinal),
            each.start,
            Fraction(each.length_units, UNITS),
            listed(each.replicas),
        ]
        for each in ring_ranges(size)
    ]


def steps() -> Rows:
    return [step_row(before, after) for before, after in pairwise([3, 4, 5, 6])]


def step_row(before_count: int, after_count: int) -> list[object]:
    step = plan_step(before_count=before_count, after_count=after_count)
    (parent,) = step.parents
    new = step.children[1]
    continued = "none"
    new_ranges = len(step.children)
    if step.continued:
        before, after = step.continued
        continued = f"{before.ordinal}: ({listed(before.replicas)}) → ({listed(after.replicas)})"
        new_ranges += 1
    name = f"{before_count} → {after_count}"
    return [name, parent.ordinal, new.ordinal, new.start, continued, new_ranges * SLICES]


def slices_of(each: Range) -> list[tuple[int, int]]:
    return slice_bounds(each.start, each.length_units, SLICES)


def followers() -> Rows:
    step = plan_step(before_count=3, after_count=4)
    children = [(each.ordinal, index) for each in step.children for index in range(SLICES)]
    bounds = [*chain.from_iterable(map(slices_of, step.children))]

    rows: Rows = []
    for parent, indices in enumerate(overlaps(slices_of(step.parents[0]), bounds)):
        (first_ordinal, first), (second_ordinal, second) = [children[index] for index in indices]
        assert first_ordinal == second_ordinal
        rows.append([parent, f"slices {first} and {second} of range {first_ordinal}"])
    return rows


def keys() -> Rows:
    return [
        [f"`{key}`", token(key.encode()), *(place(key, size) for size in (3, 4, 6))]
        for key in ("Zürich", "hello", "SFO")
    ]


def place(key: str, size: int) -> str:
    key_token = token(key.encode())
    its_range = range_of(key_token, size)
    starts = [start for start, _ in slices_of(its_range)]
    return f"{its_range.ordinal} / {find_slice(starts, key_token)}"


def range_of(key_token: int, size: int) -> Range:
    (held,) = [each for each in ring_ranges(size) if each.start <= key_token < each.end]
    return held


def cassandra() -> Rows:
    """Keys of plain bytes, of high ones, and the two that Cassandra treats in a special way."""
    named = [(f"`{key}`", key.encode()) for key in ("SFO", "Zürich", "東京")]
    return [
        [name, f"`{key.hex(' ')}`" if key else "", token(key), cassandra_token(key)]
        for name, key in [*named, ("(empty)", b""), ("", SMALLEST)]
    ]


TABLES: dict[str, Callable[[], Rows]] = {
    "orders": orders,
    "ring of 3": lambda: ranges(3),
    "ring of 4": lambda: ranges(4),
    "ring of 6": lambda: ranges(6),
    "steps": steps,
    "followers": followers,
    "keys": keys,
    "cassandra": cassandra,
}


def sentences() -> list[str]:
    """What the text says in figures."""
    third_broker = plan_step(before_count=2, after_count=3)
    assert third_broker.continued
    replaced = {*ring_ranges(3)[0].replicas} - {*ring_ranges(4)[0].replicas}
    return [
        "`mmh3.hash64(key, signed=True)[0]`",
        f"has {UNITS:,} *units* of {UNIT_TOKENS:,} tokens",
        f"what they leave of it, {TOKEN_END - TOKEN_MIN - UNITS * UNIT_TOKENS:,} tokens",
        f"after {(UNITS // 3).bit_length() - 1} doublings each of {UNITS:,} brokers has a unit",
        "has class (p · (-1)^k) mod 3, where p",  # test_ring_properties.py shows that
        f"The first twelve classes are {listed([zone_class(ordinal) for ordinal in range(12)])}.",
        "## Steps: 3 → 4 → 6",
        f"the third splits range {third_broker.parents[0].ordinal} and gives range "
        f"{third_broker.continued[0].ordinal}, continued, its third copy",
        f"Broker 3 sits in the middle of range {range_of(broker_token(3), 3).ordinal}:",
        f"the new broker takes the place of broker {listed([*replaced])}, whose class it has",
        "Brokers 4 and 5 complete the doubling:",
        f"the new partitions of a topic with {SLICES} slices:",
        "Going back, 6 → 5 → 4 → 3, each row",
        f"In the step 3 → 4, with {SLICES} slices:",
        f"smallest token, {cassandra_token(b'')}.",
        f"a hash of {token(SMALLEST)} is replaced by {cassandra_token(SMALLEST)}.",
    ]


# Names, and what the properties of tokens show.
NAMES = r"Murmur3|x64-128|64-bit|hash64|seed 0|block of 16 bytes|0x80"


def tables_of(page: str) -> list[list[list[str]]]:
    """The cells of each table of a page, without its head."""
    found = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in found
    ]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_page_is_what_the_code_says(name: str) -> None:
    tables = dict(zip(TABLES, tables_of(PAGE), strict=True))

    assert tables[name] == [[str(cell) for cell in row] for row in TABLES[name]()]


def test_the_text_of_the_page_says_what_the_code_says() -> None:
    assert [sentence for sentence in sentences() if PAGE.count(sentence) != 1] == []


def test_the_page_has_no_other_figure() -> None:
    text = re.sub(rf"^\|.*\n|{NAMES}", "", PAGE, flags=re.MULTILINE)
    for sentence in sentences():
        text = text.replace(re.sub(NAMES, "", sentence), "")

    assert re.findall(r"^.*\d.*$", text, re.MULTILINE) == []
