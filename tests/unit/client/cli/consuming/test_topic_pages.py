"""What is printed of partitions whose records retention removes while others are read."""

from collections.abc import Callable, Sequence
from queue import Queue
from typing import Self, cast

import pytest

from tailrace.cli.consuming.follow import Event, Failed, Skipped, _poll
from tailrace.cli.consuming.pages import Page
from tailrace.cli.consuming.topic_pages import Selection, select
from tailrace.errors import OffsetOutOfRangeError, ProblemError, TailraceError, problem_error
from tailrace.sync import Client
from tailrace.values import Fetched, PartitionOffsets


class RetentionClient:
    """Of a topic with partition 0, offsets [0, 10), of which the first ones are removed by now.

    None: all of them, and the partition. `listing`: of the topic, by now.
    """

    def __init__(self, log_start: int | None, listing: Sequence[PartitionOffsets] = ()) -> None:
        self._log_start = log_start
        self._listings = [[row(0, 10)], listing]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def offsets(self, *_: object) -> Sequence[PartitionOffsets]:
        return self._listings.pop(0)

    def read_lines(self, _: str, __: int, offset: int, *, max_records: int, **___: int) -> Fetched:
        if self._log_start is None:
            raise problem_error(404, {"type": "/v1/problems/partition-not-found"})
        if offset < self._log_start:
            raise out_of_range(self._log_start)
        end = min(offset + max_records, 10)
        if offset == end:
            raise TailraceError("the end of this test")
        body = b"".join(b"%d\n" % each for each in range(offset, end))
        return Fetched(body, end, 10, self._log_start)


def row(partition: int, end: int) -> PartitionOffsets:
    return PartitionOffsets("t", partition, 0, 1, 0, 0, end, end, "sealed", ())


def out_of_range(log_start: int) -> ProblemError:
    members = {"logStart": log_start, "highWatermark": 10}
    return problem_error(400, {"type": "/v1/problems/offset-out-of-range", **members})


def printed(client: RetentionClient, warn: Callable[[str], None]) -> bytes:
    selected = select(
        cast(Client, client),
        ["t"],
        Selection(None, None, None, None),
        follow=False,
        names_topics=False,
        page_records=4,
        note=lambda _: None,
        warn=warn,
    )
    return b"".join(selected.pages)


def test_what_retention_removes_meanwhile_is_named_and_the_rest_is_printed() -> None:
    warnings: list[str] = []

    assert printed(RetentionClient(7), warnings.append) == b"7\n8\n9\n"
    assert warnings == [
        'partition 0 of topic "t": offsets 0–6 were removed by retention before they were read; '  # noqa: RUF001
        "going on at 7"
    ]


def test_a_partition_that_retention_removes_meanwhile_is_named() -> None:
    warnings: list[str] = []

    assert printed(RetentionClient(None, [row(1, 0)]), warnings.append) == b""
    assert warnings == [
        'partition 0 of topic "t": offsets 0–9 were removed by retention before they were read'  # noqa: RUF001
    ]


def test_a_partition_that_a_broker_has_not_heard_of_is_not_taken_for_removed() -> None:
    with pytest.raises(ProblemError):
        printed(RetentionClient(None), lambda _: None)


def test_a_log_that_is_shorter_than_it_was_is_an_error() -> None:
    class CutClient(RetentionClient):
        def read_lines(self, *_: object, **__: object) -> Fetched:
            raise out_of_range(0)

    with pytest.raises(OffsetOutOfRangeError):
        printed(CutClient(0), lambda _: None)


def test_following_goes_on_behind_what_retention_has_removed() -> None:
    events: Queue[Event] = Queue()
    _poll(cast(Client, RetentionClient(7)), ("t", 0), 0, 4, events)

    skipped, page, end = (events.get_nowait() for _ in range(3))
    assert isinstance(skipped, Skipped)
    assert str(skipped.passed).endswith("going on at 7")
    assert page == Page("t", b"7\n8\n9\n")
    assert isinstance(end, Failed)
