"""The command line's pure parts: splitting, keys, numbers, and where consuming starts."""

import dataclasses
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tailrace.cli.consuming.topic_pages import limited, start_offset
from tailrace.cli.lib.json_texts import number_or_text, parse_json
from tailrace.cli.lib.options import counted, short_size, size_text
from tailrace.cli.lib.output import short_duration
from tailrace.cli.verbs.dev import BROKER_PACKAGES
from tailrace.errors import PartitionDamagedError, TailraceError
from tailrace.values import PartitionOffsets

ROOT = Path(__file__).parents[4]
OFFSETS = PartitionOffsets("t", 2, 0, 1, 0, 5, 9, 9, "open", ())
DAMAGED = PartitionOffsets("t", 2, 0, 1, 0, None, None, None, "damaged", ())


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
