"""Clients outside of the brokers' network are named addresses that they reach."""

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.ring.local_ring import LocalRing, founded_ring

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
OUTSIDE = "events-0.example"


def asked(ring: LocalRing, path: str, host: str, body: bytes | None = None) -> tuple[int, Any]:
    """Ask broker 0 under this name, and for itself alone."""
    headers = {"Host": host, "Tailrace-Redirect": "1", "Content-Type": "application/json"}
    request = Request(f"{ring.brokers[0].url}{path}", body, headers)
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, json.load(refused)


def test_leaders_are_named_as_whoever_asks_reaches_them(tmp_path: Path) -> None:
    with founded_ring(
        tmp_path,
        copies=3,
        outside_url="https://events-{ordinal}.example:443",
        allowed_hosts=f"{OUTSIDE},all.example",
        outside_hosts="all.example",
    ) as ring:
        assert asked(ring, "/v1/topics", "localhost", b'{"name":"t"}')[0] == 201
        inside, outside = (
            asked(ring, "/v1/topics/t", host)[1]["partitionDetails"]
            for host in ("localhost", "all.example")
        )
        away = next(row for row in inside if row["leader"] == 1)
        target = f"/v1/topic/t/partitions/{away['partition']}/records"
        refusals = {host: asked(ring, target, host) for host in ("localhost", OUTSIDE)}
        offsets = asked(ring, "/v1/offsets?topic=t", OUTSIDE)[1]
        brokers = [asked(ring, "/v1/brokers", host)[1] for host in ("localhost", OUTSIDE)]

    port = ring.brokers[1].port
    assert away["leaderUrl"].endswith(f":{port}")
    named = {row["leader"]: row.get("leaderUrl") for row in outside}
    assert named[1] == "https://events-1.example:443"
    assert {status for status, _ in refusals.values()} == {421}
    assert refusals["localhost"][1]["leaderUrl"] == away["leaderUrl"]
    assert refusals[OUTSIDE][1]["leaderUrl"] == named[1]
    assert named[1] in refusals[OUTSIDE][1]["detail"]
    assert named[1] in json.dumps(offsets)
    assert brokers[0]["ports"][1] == port
    assert (brokers[1]["names"][1], brokers[1]["ports"][1]) == ("events-1.example", 443)
