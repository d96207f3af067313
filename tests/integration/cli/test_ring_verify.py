"""`tailrace ring verify` on a ring that is well, one that lacks a broker, and one that is back."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.cli.commands import TAILRACE, TIMEOUT_S, environment
from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def verify(ring: LocalRing, ordinal: int, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [TAILRACE, "ring", "verify", *words],
        env=environment(ring.brokers[ordinal].url),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_what_is_missing_is_found_until_it_is_back(tmp_path: Path) -> None:
    with founded_ring(tmp_path) as ring:
        ring.wait_whole()
        well = verify(ring, 1)
        ring.kill(2)
        ring.until(lambda: "broker 2 is down" in verify(ring, 0).stdout, WHOLE_S_MAX)
        ill, document = verify(ring, 0), verify(ring, 0, "-o", "json")
        ring.kill(1)
        alone = verify(ring, 0)
        for ordinal in (1, 2):
            ring.brokers[ordinal].start()
        ring.wait_whole()
        ring.until(lambda: verify(ring, 2).returncode == 0, WHOLE_S_MAX)

    assert (well.returncode, well.stderr) == (0, "")
    assert [line.split("  ")[0].strip() for line in well.stdout.splitlines()] == [
        "✓ brokers",
        "✓ tokens",
        "✓ ranges",
        "✓ sealed ranges",
        "✓ step",
        "✓ metadata",
    ]
    assert (ill.returncode, ill.stderr) == (1, "")
    assert "✗ brokers        broker 2 is down: start it\n" in ill.stdout
    assert "broker 2 is not in sync in range 0: start it\n" in ill.stdout
    assert {"state": "failed", "name": "brokers", "detail": "broker 2 is down: start it"} in (
        json.loads(document.stdout)
    )
    assert alone.returncode == 1
    assert "✗ metadata" in alone.stdout
    assert "start the voters that are away" in alone.stdout


def test_a_broker_that_is_in_no_ring_cannot_say(tmp_path: Path) -> None:
    ring = LocalRing(tmp_path, count=2)
    try:
        ring.start_all()
        ring.until(lambda: ring.is_answered(0, "GET", "/live"), WHOLE_S_MAX)
        ring.until(lambda: ring.ring(0)["state"] == "waiting to be founded", WHOLE_S_MAX)
        result = verify(ring, 0)
    finally:
        ring.end_all()

    assert result.returncode == 2
    assert "this broker is in no ring yet" in result.stderr
