"""Most voters' disks are gone, and their brokers are up again with empty ones."""

import subprocess
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.support.cli.commands import TAILRACE, TIMEOUT_S, environment, run
from tests.support.ring.local_ring import SECRET, LocalRing, founded_ring

pytestmark = pytest.mark.integration


def registered(ring: LocalRing, at: int, ordinal: int) -> dict[str, Any]:
    """What a broker knows of another."""
    rows = ring.ring(at)["registrations"]
    return next(row for row in rows if row["ordinal"] == ordinal)


@pytest.mark.timeout(120)
def test_the_survivor_goes_on_alone_by_hand_and_admits_the_others(tmp_path: Path) -> None:
    with founded_ring(tmp_path, copies=1) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "kept"})
        cluster_id = ring.call(2, "GET", "/v1/ring?consistent=true")["clusterId"]
        for ordinal in (0, 1):
            ring.kill(ordinal)
        # A leader would feed the empty ones until it finds out that it is alone.
        ring.until(lambda: ring.ring(2)["metadata"]["leader"] is None, timeout_s=10)
        for ordinal in (0, 1):
            ring.wipe(ordinal)
            ring.brokers[ordinal].start()
            ring.wait_live(ordinal)
        with pytest.raises(HTTPError) as refused:  # nothing new is founded
            ring.call(0, "POST", "/v1/ring/found", {"brokers": 3})
        refused.value.close()
        body = {"acceptLoss": True}
        ring.until(
            lambda: ring.is_answered(2, "POST", "/v1/ring/metadata/recover", body), timeout_s=30
        )
        ring.wait_ready()

        ring.until(lambda: len(ring.ring(2)["metadata"]["voters"]) == 3, timeout_s=30)
        assert {ring.ring(ordinal)["clusterId"] for ordinal in range(3)} == {cluster_id}
        assert registered(ring, 2, 0)["loss"] == "disk"
        names = [topic["name"] for topic in ring.call(0, "GET", "/v1/topics")["topics"]]
        assert names == ["kept"]
        follow_the_doctor(ring)


def follow_the_doctor(ring: LocalRing) -> None:
    """It is not content until no range is without a leader, and names the command each time."""
    url = ring.brokers[2].url
    for ordinal in (0, 1):
        checked = run("doctor", url=url)
        (line,) = [
            line for line in checked.stdout.decode().splitlines() if "no broker leads" in line
        ]
        assert (checked.returncode, line[0]) == (1, "✗")
        assert f"range {ordinal} (waiting)" in line
        command = ["ring", "accept-loss", str(ordinal), "--broker", str(ordinal)]
        assert line.endswith(f": tailrace {' '.join(command)}")
        subprocess.run(
            [TAILRACE, *command],
            env=environment(url) | {"TAILRACE_TOKEN": SECRET},
            check=True,
            timeout=TIMEOUT_S,
        )
    ring.until(lambda: "✓ ranges " in run("doctor", url=url).stdout.decode(), timeout_s=30)


def test_an_empty_disk_in_a_brokers_place_is_not_that_broker(tmp_path: Path) -> None:
    with founded_ring(tmp_path) as ring:
        for ordinal in (0, 1):
            ring.kill(ordinal)
        ring.wipe(0)
        ring.brokers[0].start()
        ring.wait_live(0)
        ring.until(lambda: ring.ring(0)["state"] != "member", timeout_s=10)

        row = registered(ring, 2, 0)
        assert not row["alive"]


def test_a_topic_that_another_broker_has_just_made_is_known_to_who_deletes_it(
    tmp_path: Path,
) -> None:
    with founded_ring(tmp_path) as ring:
        for number in range(20):
            at, elsewhere = number % 3, (number + 1) % 3
            ring.call(at, "POST", "/v1/topics", {"name": f"t{number}"})
            ring.call(elsewhere, "PATCH", f"/v1/topics/t{number}", {"lingerMs": 1})
            ring.call(elsewhere, "DELETE", f"/v1/topics/t{number}")

        assert ring.call(0, "GET", "/v1/ring?consistent=true")["metadata"]["applied"] >= 60
