"""What `tailrace topic alter --partitions-per-range` shows."""

from dataclasses import replace
from typing import Any

import pytest

from tailrace.cli.lib import reslicing
from tailrace.cli.lib.reslicing import plan_reslice, reslice_text, wait_resliced
from tailrace.cli.lib.topic_plans import plan_alter
from tailrace.errors import TailraceError
from tailrace.values import PartitionDetails, TopicDetails, TopicInfo

ORDERS = TopicInfo("orders", "1", 4, True, "fsync", 12, 3)
OTHER = TopicInfo("other", "2", 5, True, "fsync", 15, 3)


class Topics:
    """A client of brokers whose topics change with each request."""

    def __init__(self, *seen: list[TopicInfo], details: TopicDetails | None = None) -> None:
        self._seen = list(seen)
        self._details = details

    def topics(self) -> list[TopicInfo]:
        return self._seen.pop(0)

    def topic(self, name: str) -> TopicDetails:
        assert self._details is not None
        assert self._details.topic.name == name
        return self._details


def partition(number: int, range_id: int, state: str = "open") -> PartitionDetails:
    return PartitionDetails(
        partition=number, range_id=range_id, epoch=1, first_offset=0, log_start=0,
        high_watermark=0, log_end=0, state=state, parents=(), children=(), leader=0, slice=0,
        slices=1, token_start="0", token_end="1", isr=(0,), size_bytes=0, quarantined=(),
    )  # fmt: skip


def wait(*seen: list[TopicInfo], first: int = 3) -> TopicInfo:
    client: Any = Topics(*seen)
    return wait_resliced(client, replace(ORDERS, ranges_to_slice=first))


def test_it_waits_until_no_range_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reslicing, "PAUSE_S", 0)
    counts = (3, 1, 0)

    found = wait(*([OTHER, replace(ORDERS, ranges_to_slice=each)] for each in counts))

    assert found == ORDERS
    assert capsys.readouterr().err == (
        "orders: 3 ranges still to come to 4 partitions\n"
        "orders: 1 range still to come to 4 partitions\n"
    )


def test_a_topic_that_is_deleted_meanwhile_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reslicing, "PAUSE_S", 0)

    with pytest.raises(TailraceError, match="orders was deleted meanwhile"):
        wait([OTHER])


def test_a_plan_counts_what_is_sealed() -> None:
    rows = [partition(0, 0, "sealed"), *(partition(each, 1) for each in range(1, 5))]
    rows += [partition(each, 2) for each in range(5, 13)]  # which have been re-sliced
    details = TopicDetails(ORDERS, tuple(rows))
    client: Any = Topics([ORDERS, OTHER], [ORDERS], details=details)

    plan = plan_reslice(client, details, 8)

    assert plan == {
        "ranges": 1,
        "sealedPartitions": 4,
        "newPartitions": 8,
        "otherTopics": 1,
        "otherPartitions": 5,
    }
    assert reslice_text("orders", plan) == (
        "1 range re-sliced, one after another: 4 partitions of orders sealed, 8 new; "
        "5 partitions of 1 other topic sealed, and as many new. Nothing is copied; each range "
        "pauses for milliseconds"
    )
    document, text = plan_alter(client, "orders", {"partitions_per_range": 8})
    assert document["changes"] == {"partitionsPerRange": {"from": 4, "to": 8}}
    assert document["reslice"]["newPartitions"] == 8
    assert text.startswith(
        "would change partitions-per-range 4 to 8; 1 range re-sliced, one after another: "
        "4 partitions of orders sealed, 8 new. Nothing is copied"
    )
