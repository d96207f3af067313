"""The command line's pure parts: splitting, keys, numbers, and where consuming starts."""

import dataclasses
import io
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.dev import BROKER_PACKAGES
from tailrace.cli.ndjson import (
    BadLine,
    keyed_records,
    number_or_text,
    parse_json,
    parse_key_path,
    read_batches,
    record_key,
)
from tailrace.cli.options import counted, short_size, size_text
from tailrace.cli.produce import BATCH_BYTES
from tailrace.cli.status import short_duration
from tailrace.cli.topic_pages import limited, start_offset
from tailrace.errors import PartitionDamagedError, TailraceError
from tailrace.values import PartitionOffsets

ROOT = Path(__file__).parents[3]
OFFSETS = PartitionOffsets("t", 2, 0, 1, 0, 5, 9, 9, "open", ())
DAMAGED = PartitionOffsets("t", 2, 0, 1, 0, None, None, None, "damaged", ())
REQUEST_EVENTS_MAX = 500_000  # docs/protocol.md, "Problems", body-too-large


@given(st.binary(max_size=200), st.integers(1, 50))
def test_batches_are_whole_lines_that_together_are_the_stream(
    content: bytes, batch_bytes: int
) -> None:
    batches = list(read_batches(io.BytesIO(content), batch_bytes))
    lines = [line for batch in batches for line in batch.lines]

    assert b"".join(lines) == content
    assert all(line.endswith(b"\n") for line in lines[:-1])
    assert all(b"\n" not in line[:-1] for line in lines)
    assert all(len(b"".join(batch.lines)) >= batch_bytes for batch in batches[:-1])
    counts = [len(batch.lines) for batch in batches]
    assert [batch.first_line for batch in batches] == [
        1 + sum(counts[:index]) for index in range(len(counts))
    ]


def test_a_request_of_the_shortest_lines_holds_no_more_events_than_a_broker_takes() -> None:
    [first, *_] = read_batches(io.BytesIO(b"1\n" * BATCH_BYTES), BATCH_BYTES)

    assert len(first.lines) <= REQUEST_EVENTS_MAX


@pytest.mark.parametrize(
    ("text", "path"), [(".origin", ("origin",)), (".customer.id", ("customer", "id"))]
)
def test_a_field_path_starts_with_a_dot(text: str, path: tuple[str, ...]) -> None:
    assert parse_key_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "origin", "a.b", ".a.", "..a", ".a..b"])
def test_anything_else_is_no_field_path(text: str) -> None:
    with pytest.raises(ValueError, match="not a field path"):
        parse_key_path(text)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('{"k": "SFO"}', b"SFO"),
        ('{"k": ""}', b""),
        ('{"k": "\\u00e9"}', "é".encode()),
        ('{"k": 1.50}', b"1.50"),
        ('{"k": 1e400}', b"1e400"),
        ('{"k": -7}', b"-7"),
        ('{"k": true}', b"true"),
        ('{"k": false}', b"false"),
    ],
)
def test_a_key_is_the_fields_text_as_written(value: str, key: bytes) -> None:
    assert record_key(value.encode(), ["k"]) == key


def test_a_key_may_lie_in_an_object() -> None:
    assert record_key(b'{"customer": {"id": "c7"}}', ["customer", "id"]) == b"c7"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"k": "a"', "is not JSON"),
        (b'{"k": NaN}', "is not JSON"),
        (b'{"k": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"other": 1}', "has no .k"),
        (b'{"k": null}', "has no .k"),
        (b'"text"', "has no .k"),
        (b"[1]", "has no .k"),
        (b'{"k": [1]}', "has no text or number in .k"),
        (b'{"k": {}}', "has no text or number in .k"),
        (b'{"k": "\\ud800"}', "has no text or number in .k"),
    ],
)
def test_a_line_without_a_key_says_why(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        record_key(value, ["k"])


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("-7", -7),
        ("9" * 30, 10**30 - 1),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("1e400", "1e400"),
        ("-1e400", "-1e400"),
        ("9" * 5_000, "9" * 5_000),
    ],
)
def test_a_number_that_does_not_fit_stays_as_written(written: str, number: object) -> None:
    assert number_or_text(written) == number


def test_records_end_before_the_first_bad_line() -> None:
    lines = [b'{"k":"a"}\r\n', b"\n", b"\r\n", b'{"k":"b"}\n', b'{"x":1}\n', b'{"k":"c"}']

    assert keyed_records(lines, ["k"]) == (
        [b"a", b"b"],
        [b'{"k":"a"}', b'{"k":"b"}'],
        BadLine(4, "has no .k"),
    )
    assert keyed_records(lines[:4], ["k"]).bad_line is None


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1536, "1.5 KiB"),
        (5_347_738, "5.1 MiB"),
        (2048 * 1024**3, "2,048.0 GiB"),
    ],
)
def test_sizes_read_as_people_say_them(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_counts_have_separators_and_a_plural() -> None:
    assert [counted(count, "event") for count in (0, 1, 10_000)] == [
        "0 events",
        "1 event",
        "10,000 events",
    ]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0B"),
        (999, "999B"),
        (1_000, "1.0K"),
        (38 * 1024**2, "38M"),
        (1_600 * 1024**2, "1.6G"),
        (50 * 1024**3, "50G"),
        (2_000 * 1024**4, "2000T"),
    ],
)
def test_sizes_of_disks_read_as_those_of_df(size_bytes: int, text: str) -> None:
    assert short_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (60, "1m"), (7_199, "1h"), (1e6, "11d")]
)
def test_durations_read_in_their_largest_unit(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        (None, 5),
        ("earliest", 5),
        ("latest", 9),
        ("5", 5),
        ("7", 7),
        ("9", 9),
        ("-1", 8),
        ("-4", 5),
        ("-5", 5),
        ("-9999999999999999999", 5),
    ],
)
def test_consuming_starts_inside_the_partition(start: str | None, offset: int) -> None:
    assert start_offset(start, None, OFFSETS) == offset


@pytest.mark.parametrize(("timestamp_offset", "offset"), [(6, 6), (None, 9)])
def test_consuming_from_a_time_starts_at_its_first_record_or_at_the_end(
    timestamp_offset: int | None, offset: int
) -> None:
    timed = dataclasses.replace(OFFSETS, timestamp_offset=timestamp_offset)

    assert start_offset(None, 17, timed) == offset


@pytest.mark.parametrize("start", ["4", "10"])
def test_an_offset_outside_the_partition_names_its_bounds(start: str) -> None:
    with pytest.raises(TailraceError, match="outside partition 2, which has 5 to 9"):
        start_offset(start, None, OFFSETS)


def test_a_damaged_partition_has_no_start() -> None:
    with pytest.raises(PartitionDamagedError):
        start_offset(None, None, DAMAGED)


@pytest.mark.parametrize(
    ("max_records", "expected"),
    [
        (None, b"1\n2\n3\n"),
        (0, b""),
        (1, b"1\n"),
        (2, b"1\n2\n"),
        (3, b"1\n2\n3\n"),
        (9, b"1\n2\n3\n"),
    ],
)
def test_pages_end_after_the_wanted_count(max_records: int | None, expected: bytes) -> None:
    pages = iter([b"1\n2\n", b"", b"3\n"])

    assert b"".join(limited(pages, max_records)) == expected


def test_no_page_is_asked_for_that_is_not_wanted() -> None:
    pages = iter([b"1\n2\n", b"3\n"])
    taken = list(limited(pages, 2))

    assert (taken, list(pages)) == ([b"1\n2\n"], [b"3\n"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"NaN", "NaN is not a JSON value"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "can't decode byte 0xff"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_no_json_or_cannot_be_read_here_is_a_value_error(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(value)


def test_the_packages_that_prove_the_broker_extra_are_in_it_alone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    def packages(extra: str) -> set[str]:
        return {line.split(">")[0].replace("-", "_") for line in extras[extra]}

    assert set(BROKER_PACKAGES) <= packages("broker") - packages("arrow") - packages("spark")
    assert all(map(find_spec, BROKER_PACKAGES))
