"""Segment files and indexes as documents: batches, pads, zeros, damage, records."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.stored import segments
from tailrace.cli.stored.segments import entries, read_index, records, time_text
from tailrace.errors import CorruptBatchError
from tailrace_broker.codec.segment import encode_pad
from tests.support.storage.batches import Event, batch_of

GOLDEN = Path(__file__).parents[4] / "golden" / "formats"
SEGMENT = (GOLDEN / "segment.log").read_bytes()
INDEX = (GOLDEN / "long.idx").read_bytes()
BATCH = batch_of([Event(b"1"), Event(None, key=None)])
WRITE = BATCH + encode_pad(4096 - len(BATCH))


def kinds_of(stored: bytes) -> list[tuple[str, int, str]]:
    return [
        (entry["kind"], entry["position"], entry["checksum"])
        for entry in entries(io.BytesIO(stored), len(stored))
    ]


def test_a_segment_is_batches_and_pads() -> None:
    assert kinds_of(SEGMENT) == [
        ("batch", 0, "ok"),
        ("pad", 288, "ok"),
        ("batch", 4096, "ok"),
        ("batch", 4320, "ok"),
        ("pad", 4608, "ok"),
        ("batch", 8192, "ok"),
        ("pad", 8896, "ok"),
    ]


def test_a_batch_tells_what_its_header_says() -> None:
    *_, batch, _ = entries(io.BytesIO(SEGMENT), len(SEGMENT))

    assert batch == {
        "position": 8192,
        "kind": "batch",
        "firstOffset": 9,
        "lastOffset": 68,
        "count": 60,
        "codec": "lz4",
        "bytes": 704,
        "uncompressedBytes": 2760,
        "firstTimestamp": "2025-11-24T16:00:00.000000Z",
        "largestTimestamp": "2025-11-24T16:00:00.000000Z",
        "appendTime": "2025-11-24T16:00:00.000000Z",
        "epoch": 1,
        "highWatermark": 9,
        "flags": ["json_values", "broker_timestamps"],
        "checksum": "ok",
    }


def test_zeros_behind_the_last_write_are_one_entry() -> None:
    assert kinds_of(WRITE + bytes(3 * 4096)) == [
        ("batch", 0, "ok"),
        ("pad", len(BATCH), "ok"),
        ("zeros", 4096, "ok"),
    ]


def test_a_damaged_payload_is_told_and_what_follows_is_read() -> None:
    stored = bytearray(WRITE * 2)
    stored[len(BATCH) - 20] ^= 1

    assert kinds_of(bytes(stored)) == [
        ("batch", 0, "bad"),
        ("pad", len(BATCH), "ok"),
        ("batch", 4096, "ok"),
        ("pad", 4096 + len(BATCH), "ok"),
    ]


@pytest.mark.parametrize("position", [4, 12, 40, 127])
def test_behind_a_damaged_header_reading_goes_on_with_the_next_write(position: int) -> None:
    stored = bytearray(WRITE * 2)
    stored[position] ^= 1

    assert kinds_of(bytes(stored))[:2] == [("damage", 0, "bad"), ("batch", 4096, "ok")]


def test_a_batch_that_is_cut_off_is_damage() -> None:
    assert kinds_of(BATCH[:-16]) == [("damage", 0, "bad")]


def test_damage_and_zeros_are_told_apart() -> None:
    stored = WRITE + b"x" * 4096 + bytes(4096) + b"y" * 100

    assert kinds_of(stored)[2:] == [
        ("damage", 4096, "bad"),
        ("zeros", 8192, "ok"),
        ("damage", 12288, "bad"),
    ]


@given(st.binary(max_size=300), st.integers(0, len(WRITE)), st.integers(0, 5000))
def test_whatever_a_file_holds_its_entries_are_all_of_it(
    noise: bytes, position: int, zero_bytes: int
) -> None:
    stored = WRITE[:position] + noise + WRITE[position:] + bytes(zero_bytes)
    end = 0
    for entry in entries(io.BytesIO(stored), len(stored)):
        assert entry["position"] == end
        end += entry["bytes"]

    assert end == len(stored)


def test_without_the_checksum_package_nothing_is_called_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "crc32c", None)

    assert {checksum for _, _, checksum in kinds_of(SEGMENT)} == {"unchecked"}
    assert read_index(INDEX)["checksum"] == "unchecked"


def pages_of(stored: bytes) -> list[list[dict[str, Any]]]:
    file = io.BytesIO(stored)
    return list(records(file, entries(file, len(stored))))


def record_of(event: Event) -> dict[str, Any]:
    [[record]] = pages_of(batch_of([event]))
    return record


def test_records_are_as_a_read_of_a_broker_has_them() -> None:
    pages = pages_of(SEGMENT)

    assert [len(page) for page in pages] == [3, 3, 3, 60]
    assert pages[0][1] == {
        "partition": 3,
        "offset": 1,
        "timestamp": "2025-11-24T16:00:00.000000Z",
        "key": "SFO",
        "value": {"origin": "SFO", "delay": -3},
    }


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        (b'{"a": [1.5, null]}', {"a": [1.5, None]}),
        (b"[1e400, -2]", ["1e400", -2]),
        (None, None),
        (b"text", {"base64": "dGV4dA=="}),
        (b"\xff", {"base64": "/w=="}),
        (b"NaN", {"base64": "TmFO"}),
    ],
)
def test_a_value_is_json_or_base64(stored: bytes | None, value: object) -> None:
    assert record_of(Event(stored))["value"] == value


def test_a_value_in_base64_is_told_from_json_that_looks_like_it() -> None:
    assert record_of(Event(b"\xff"))["valueEncoding"] == "base64"
    assert "valueEncoding" not in record_of(Event(b'{"base64":"/w=="}'))


@pytest.mark.parametrize(
    ("stored", "key"), [("é".encode(), "é"), (b"\xff", {"base64": "/w=="}), (None, None)]
)
def test_a_key_is_text_or_base64(stored: bytes | None, key: object) -> None:
    assert record_of(Event(b"1", key=stored))["key"] == key


def test_headers_are_shown_when_there_are_some() -> None:
    record = record_of(Event(b"1", headers=[(b"a", b"1"), (b"b", b"\xff")]))

    assert record["headers"] == [
        {"key": "a", "value": {"base64": "MQ=="}},
        {"key": "b", "value": {"base64": "/w=="}},
    ]


def test_a_damaged_batch_has_no_records() -> None:
    stored = bytearray(BATCH)
    stored[-20] ^= 1

    with pytest.raises(CorruptBatchError, match=r"offset 0 cannot be read .*payload checksum"):
        pages_of(bytes(stored))


def test_an_index_is_read_with_its_entries() -> None:
    index = read_index(INDEX)

    assert index["checksum"] == "ok"
    assert index["entries"][0] == {
        "relativeOffset": 0,
        "position": 0,
        "largestTimestampBefore": None,
    }
    assert len(index["entries"]) == (len(INDEX) - 56) // 16


def test_a_damaged_index_is_told() -> None:
    damaged = bytearray(INDEX)
    damaged[-1] ^= 1

    assert read_index(bytes(damaged))["checksum"] == "bad"


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"", "not an index"),
        (SEGMENT[:200], "not an index"),
        (INDEX[:-1], "cut short"),
        (INDEX.replace(b"\2", b"\1", 1), "of version 1, and this reads 2"),
    ],
)
def test_what_is_no_index_says_why(stored: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=f"{reason}.*: a broker writes it anew"):
        read_index(stored)


def test_a_time_beyond_the_calendar_is_none() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"
    assert time_text(-(2**63)) is None
    assert time_text(2**63 - 1) is None
