"""Brokers seal the ranges of a step, with one copy and with three."""

from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring

TOPIC = "sealed"
EVENTS = 40

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def grown(ring: LocalRing, brokers_before: int) -> dict[str, Any]:
    """What the ring answers when it has grown by the broker after the last one."""
    answers: list[dict[str, Any]] = []

    def is_taken() -> bool:
        body = {"kind": "grow", "brokersBefore": brokers_before}
        try:
            answers.append(ring.call(0, "POST", "/v1/ring/steps", body))
        except HTTPError as error:
            print(error.read().decode())
            return False
        return True

    ring.until(is_taken, WHOLE_S_MAX)
    return answers[0]


def write(ring: LocalRing, brokers: int) -> None:
    """Have events stored through all brokers, in a topic that is flushed once a minute."""
    settings = {"name": TOPIC, "durability": "written", "flushMs": 60_000}
    ring.call(0, "POST", "/v1/topics", settings)
    for number in range(EVENTS):
        path = f"/v1/topic/{TOPIC}/messages?partitionKey={number}"
        ring.call(number % brokers, "POST", path, {})


@pytest.mark.parametrize("brokers", [1, 3])
def test_ranges_are_sealed_when_all_is_flushed(tmp_path: Path, brokers: int) -> None:
    count = brokers + 1
    with founded_ring(tmp_path, count=count, founders=brokers, copies=3) as ring:
        write(ring, brokers)

        answer = grown(ring, brokers)

        print(answer)
        assert answer["brokers"] == brokers + 1
        assert answer["sealedRanges"]
        assert answer["newRanges"]
        states = {each["id"]: each["state"] for each in ring.ranges()}
        assert {states[each] for each in answer["sealedRanges"]} == {"sealed"}
