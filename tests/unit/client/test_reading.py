"""What a reading reads of each partition, and what it says when a package is missing."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tailrace import reading
from tailrace.errors import (
    OffsetOutOfRangeError,
    PartitionDamagedError,
    TailraceError,
    problem_error,
)
from tailrace.extras import MissingPackageError
from tailrace.reading import Bound, Reading, ReadingParameters, Stretch, plan
from tailrace.sync import Client
from tailrace.values import Fetched, PartitionOffsets
from tests.support.storage.batches import Event, batch_of

TIME = datetime(2026, 11, 21, tzinfo=UTC)
URL = "http://127.0.0.1:1"  # where nothing is asked


def partition(number: int, log_start: int | None, high_watermark: int | None) -> PartitionOffsets:
    state = "open" if log_start is not None else "damaged"
    return PartitionOffsets(
        "t", number, 0, 1, 0, log_start, high_watermark, high_watermark, state, ()
    )


LISTING = [partition(0, 10, 20), partition(1, 0, 5), partition(2, 7, 7)]


@pytest.mark.parametrize(
    ("start", "end", "stretches"),
    [
        (None, None, [(0, 10, 20), (1, 0, 5), (2, 7, 7)]),
        (4, 15, [(0, 10, 15), (1, 4, 5), (2, 7, 7)]),
        (-3, None, [(0, 17, 20), (1, 2, 5), (2, 7, 7)]),
        (None, -1, [(0, 10, 19), (1, 0, 4), (2, 7, 7)]),
        ({0: 12}, {1: 3}, [(0, 12, 20), (1, 0, 3), (2, 7, 7)]),
        (18, 12, [(0, 18, 18), (1, 5, 5), (2, 7, 7)]),
        (TIME, TIME, [(0, 11, 13), (1, 5, 5), (2, 7, 7)]),
        (TIME, None, [(0, 11, 20), (1, 5, 5), (2, 7, 7)]),
        ("earliest", "latest", [(0, 10, 20), (1, 0, 5), (2, 7, 7)]),
        ("latest", None, [(0, 20, 20), (1, 5, 5), (2, 7, 7)]),
        (None, "earliest", [(0, 10, 10), (1, 0, 0), (2, 7, 7)]),
    ],
)
def test_bounds_are_those_of_each_partition(
    start: Bound | None, end: Bound | None, stretches: list[tuple[int, int, int]]
) -> None:
    planned = plan(
        LISTING, start, end, starts_of_time={0: 11, 1: None}, ends_of_time={0: 13, 1: None}
    )

    assert planned == [Stretch(*stretch) for stretch in stretches]


def test_a_damaged_partition_is_reported() -> None:
    with pytest.raises(PartitionDamagedError):
        plan([partition(0, None, None)], None, None, starts_of_time={}, ends_of_time={})


@pytest.mark.parametrize(
    ("parameters", "reported"),
    [
        (ReadingParameters(last=1, start=0), "last excludes start"),
        (ReadingParameters(last=1, end=TIME), "last excludes start"),
        (ReadingParameters(last=0), "last is 0"),
        (ReadingParameters(start=datetime(2026, 1, 1)), "start is a time without a zone"),  # noqa: DTZ001
        (ReadingParameters(end=datetime(2026, 1, 1)), "end is a time without a zone"),  # noqa: DTZ001
    ],
)
def test_parameters_that_say_nothing_are_refused_at_once(
    parameters: ReadingParameters, reported: str
) -> None:
    with pytest.raises(ValueError, match=reported):
        Client(URL).read("t", **parameters)


@pytest.mark.parametrize("start", ["soon", "2026-11-21", 1.5, [0]])
def test_what_is_no_bound_is_refused_with_what_it_may_be(start: Any) -> None:
    with pytest.raises(ValueError, match=r'start is .*; give an offset, -n, "earliest"'):
        Client(URL).read("t", start=start)


@pytest.mark.parametrize(
    ("package", "use", "reported"),
    [
        (
            "pyarrow",
            Reading.to_arrow,
            r"to_arrow\(\) needs pyarrow.*pip install -e .*\[arrow\]'$",
        ),
        ("crc32c", Reading.batches, r"Arrow needs crc32c.*pip install -e .*\[arrow\]'$"),
        ("pandas", Reading.to_pandas, r"to_pandas\(\) needs pandas.*pip install pandas"),
        ("polars", Reading.to_polars, r"to_polars\(\) needs polars.*pip install polars"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, use: Callable[[Reading], object], reported: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    unread = Client(URL).read("t")

    with pytest.raises(MissingPackageError, match=reported) as caught:
        use(unread)

    assert isinstance(caught.value, TailraceError)
    assert isinstance(caught.value, ImportError)


def test_what_retention_removes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large topic with retention is never read faster than it is listed."""

    def lines(offset: int) -> bytes:
        head = b'{"partition":0,"offset":%d,"timestamp":"2026-01-01T00:00:00.000000Z",'
        return head % offset + b'"key":null,"value":1}\n'

    def read(kind: str, body: Callable[[int], bytes]) -> None:
        def page(_: object, __: str, ___: int, offset: int, **____: int) -> Fetched:
            if offset < 17:
                members = {"logStart": 17, "highWatermark": 20}
                raise problem_error(400, {"type": "/v1/problems/offset-out-of-range", **members})
            return Fetched(body(offset), offset + 1, 20, 17)

        monkeypatch.setattr(reading, kind, page)

    monkeypatch.setattr(reading, "_offsets", lambda *_: [partition(0, 10, 20)])
    read("_read_lines", lines)
    read("_read_batches", lambda offset: batch_of([Event(b"1")], base_offset=offset))
    found = Client(URL).read("t")

    assert [record.offset for record in found] == [17, 18, 19]
    assert found.to_arrow()["offset"].to_pylist() == [17, 18, 19]


@pytest.mark.parametrize("use", [list, Reading.to_arrow])
def test_a_log_that_is_shorter_than_it_was_is_an_error(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Reading], object]
) -> None:
    def page(*_: object, **__: object) -> Fetched:
        members = {"logStart": 0, "highWatermark": 5}
        raise problem_error(400, {"type": "/v1/problems/offset-out-of-range", **members})

    monkeypatch.setattr(reading, "_offsets", lambda *_: [partition(0, 10, 20)])
    monkeypatch.setattr(reading, "_read_lines", page)
    monkeypatch.setattr(reading, "_read_batches", page)

    with pytest.raises(OffsetOutOfRangeError):
        use(Client(URL).read("t"))
