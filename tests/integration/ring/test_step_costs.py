"""What a ring says of its steps: what one has cost, or why it was cancelled."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tailrace.sync import Client
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.ring_steps import step_to

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

KEYS = [f"k{number}" for number in range(24)]
LATE = "range 0 could not be sealed in time: "
GROW = {"kind": "grow", "brokersBefore": 3}


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[LocalRing]:
    """Three brokers, and one that is to join."""
    with founded_ring(tmp_path, count=4, founders=3) as ring:
        ring.wait_whole()
        yield ring


def last_step(ring: LocalRing, ordinal: int) -> Any:
    return ring.ring(ordinal)["lastStep"]


def why_cancelled(ring: LocalRing) -> str | None:
    step = last_step(ring, 0)
    return None if step is None else step["cancelled"]


def has_seen_a_step(ring: LocalRing, ordinal: int) -> bool:
    return last_step(ring, ordinal) is not None


def produce(ring: LocalRing, key: str) -> None:
    with Client(ring.brokers[0].url) as client:
        client.produce_lines("t", b"1\n", key=key)


def is_behind(ring: LocalRing, ordinal: int) -> bool:
    """The broker lacks records of range 0, which broker 0 leads, or is out of its ISR."""
    [owner] = [each for each in ring.ring(0)["ranges"] if each["id"] == 0]
    is_out = ordinal not in {each["ordinal"] for each in owner["isr"]}
    return is_out or any(each["lagRecords"] for each in owner["followers"] or ())


def test_every_broker_knows_what_the_last_step_has_cost(ring: LocalRing) -> None:
    assert last_step(ring, 0) is None
    [step] = step_to(ring, 4)
    assert 0 <= step["pauseMs"] <= step["durationMs"]

    for ordinal in range(4):
        ring.until(partial(has_seen_a_step, ring, ordinal), WHOLE_S_MAX)
        known = last_step(ring, ordinal)
        assert (known["id"], known["kind"], known["cancelled"]) == (step["step"], "split", None)
        assert 0 <= known["pauseMs"] <= known["durationMs"]
        texts = [each["text"] for each in ring.call(ordinal, "GET", "/v1/ring/history")["changes"]]
        assert f"step {step['step']} is done: split, ring of 4" in texts
    assert (last_step(ring, 0)["durationMs"], last_step(ring, 0)["pauseMs"]) == (
        step["durationMs"],
        step["pauseMs"],
    )


def test_a_step_that_is_cancelled_names_the_range_and_who_it_waited_for(ring: LocalRing) -> None:
    # With three in sync nothing is committed, so nothing sealed, without broker 1.
    ring.call(0, "POST", "/v1/topics", {"name": "t", "minInSyncReplicas": 3})
    ring.wait_whole()
    with ThreadPoolExecutor(len(KEYS)) as pool:
        # Once, unless a slow machine asks for the step when broker 1 has left the ISR: refused.
        while why_cancelled(ring) is None:
            ring.pause(1)
            for key in KEYS:  # of all ranges: what broker 1 is sent it does not confirm
                pool.submit(produce, ring, key)
            ring.until(partial(is_behind, ring, 1), WHOLE_S_MAX)
            with suppress(HTTPError):  # it is under way, or cancelled
                ring.call(0, "POST", "/v1/ring/steps", GROW)
            ring.until(lambda: ring.ring(0)["step"] is None, WHOLE_S_MAX)
            ring.resume(1)
            ring.wait_whole()

    # When broker 1 has left the ISR meanwhile, nobody counts beside the leader.
    assert str(why_cancelled(ring)).startswith((f"{LATE}broker 1 ", f"{LATE}its leader has not"))
    assert ring.ring(0)["brokers"] == 3
    step_to(ring, 4)
    assert why_cancelled(ring) is None
