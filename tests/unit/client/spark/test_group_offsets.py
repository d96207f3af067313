from collections.abc import Callable
from typing import Any

import pytest

from tailrace.errors import ConnectionFailedError
from tailrace.spark.connection import PatientClient
from tailrace.spark.group_offsets import RETRY_AFTER_S, SOURCE, GroupOffsets

FIRST = {("flights", 0): 10, ("flights", 1): 5, ("orders", 0): 1}
SECOND = {**FIRST, ("orders", 0): 2}


class Brokers(PatientClient):
    """Notes what is published, or fails; nothing is sent."""

    def __init__(self) -> None:
        super().__init__(["http://a:9250"])
        self.reported: list[tuple[str, str, Any]] = []
        self.ask_count = 0
        self.is_away = False

    def publish_offsets(self, name: str, source: str, offsets: Any) -> None:
        self.reported.append((name, source, offsets))

    def ask(self, request: Callable[[Any], Any]) -> Any:
        self.ask_count += 1
        if self.is_away:
            raise ConnectionFailedError("http://a:9250", "connection refused")
        return request(self)


class Clock:
    """Seconds, as the test sets them."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_offsets_are_published_when_they_have_changed() -> None:
    brokers = Brokers()
    offsets = GroupOffsets("g", brokers)

    for each in (FIRST, dict(FIRST), SECOND):
        offsets.publish(each)

    assert brokers.reported == [
        ("g", SOURCE, {"flights": {0: 10, 1: 5}, "orders": {0: 1}}),
        ("g", SOURCE, {"flights": {0: 10, 1: 5}, "orders": {0: 2}}),
    ]


def test_what_cannot_be_published_is_warned_of_once_and_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers, clock = Brokers(), Clock()
    offsets = GroupOffsets("g", brokers, now_s=clock)
    brokers.is_away = True

    for _ in range(3):
        offsets.publish(FIRST)
    assert brokers.ask_count == 1
    clock.now_s += RETRY_AFTER_S
    offsets.publish(SECOND)
    assert brokers.ask_count == 2
    assert len(caplog.messages) == 1
    assert 'progress of group "g" is not published: no broker answers' in caplog.messages[0]

    brokers.is_away = False
    offsets.publish(SECOND)
    assert not brokers.reported
    clock.now_s += RETRY_AFTER_S
    offsets.publish(SECOND)
    offsets.publish(FIRST)
    assert [reported[2]["orders"] for reported in brokers.reported] == [{0: 2}, {0: 1}]


def test_a_warning_comes_again_when_it_had_worked_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers()
    offsets = GroupOffsets("g", brokers)

    offsets.publish(FIRST)
    brokers.is_away = True
    offsets.publish(SECOND)

    assert len(caplog.messages) == 1
