"""A topic that wants each event on three brokers, in a ring of which one is away."""

from pathlib import Path

import pytest

from tailrace.errors import ProblemError, TailraceError
from tailrace.sync import Client
from tests.support.ring.local_ring import founded_ring

S_MAX = 30.0
KEYS = [f"k{number}" for number in range(6)]  # of all ranges

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def outcomes(client: Client, topic: str) -> set[str]:
    """What becomes of an event of each key: stored, or a problem's type."""
    found = set()
    for key in KEYS:
        try:
            client.produce(topic, b"1", key=key)
            found.add("stored")
        except ProblemError as error:
            found.add(error.type)
        except TailraceError:
            found.add("no answer")
    return found


def test_it_takes_no_events_with_two_until_it_is_altered_or_all_are_back(tmp_path: Path) -> None:
    with (
        founded_ring(tmp_path, copies=3) as ring,
        Client(ring.brokers[0].url) as client,
    ):
        client.create_topic("two")
        strict = client.create_topic("three", min_in_sync_replicas=3)
        client.create_topic("altered", min_in_sync_replicas=3)
        assert strict.min_in_sync_replicas == 3
        ring.until(lambda: outcomes(client, "three") == {"stored"}, S_MAX)

        ring.kill(2)
        ring.until(lambda: outcomes(client, "two") == {"stored"}, S_MAX)
        ring.until(lambda: outcomes(client, "three") == {"not-enough-replicas"}, S_MAX)
        assert outcomes(client, "two") == {"stored"}

        client.alter_topic("altered", min_in_sync_replicas=2)
        ring.until(lambda: outcomes(client, "altered") == {"stored"}, S_MAX)

        ring.brokers[2].start()
        ring.until(lambda: outcomes(client, "three") == {"stored"}, S_MAX)
