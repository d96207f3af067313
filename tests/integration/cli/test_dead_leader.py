"""A broker of a ring is killed: what the command line says of its partitions, and of copies."""

import json
from pathlib import Path

import pytest

from tests.support.broker.fixtures import free_ring_port
from tests.support.cli.commands import run, told
from tests.support.ring.local_ring import founded_ring

pytestmark = pytest.mark.integration

TAKEN_FOR_DEAD_S_MAX = 30.0


def test_a_dead_brokers_partitions_are_not_shown_as_open(tmp_path: Path) -> None:
    with founded_ring(tmp_path, port=free_ring_port()) as ring:
        url = ring.brokers[0].url
        told(run("topic", "create", "flights", "--partitions-per-range", "1", url=url))
        ring.kill(1)
        ring.until(lambda: ring.ring(0)["ranges"][1]["state"] == "waiting", TAKEN_FOR_DEAD_S_MAX)
        table = told(run("topic", "describe", "flights", url=url)).splitlines()
        document = json.loads(told(run("topic", "describe", "flights", "-o", "json", url=url)))
        offsets = ring.call(0, "GET", "/v1/offsets?topic=flights")["topics"][0]["partitions"]

    assert table[1].split()[3] == "LEADER"
    assert [line.split()[3:5] for line in table[2:]] == [["0", "0"], ["1", "down"], ["2", "2"]]
    assert [line.split()[-1] for line in table[2:]] == ["open", "waiting", "open"]
    states = [each["state"] for each in document["partitionDetails"]]
    assert states == [each["state"] for each in offsets] == ["open", "waiting", "open"]


def test_status_says_how_many_copies_there_are_and_which_ranges_lack_theirs(
    tmp_path: Path,
) -> None:
    with founded_ring(tmp_path, port=free_ring_port()) as ring:
        url = ring.brokers[0].url
        whole = told(run("status", url=url)).splitlines()
        ring.kill(2)
        ring.until(lambda: ring.ring(0)["ranges"][2]["state"] == "waiting", TAKEN_FOR_DEAD_S_MAX)
        lacking = told(run("status", url=url)).splitlines()
        document = json.loads(told(run("status", "-o", "json", url=url)))

    assert "ranges 3   copies 1   under-replicated 0" in whole[0]
    assert whole[-1].startswith("copies 1: each event is on one broker")
    assert "brokers 2/3   ranges 3   copies 1   under-replicated 1" in lacking[0]
    assert (document["ring"]["copies"], document["ring"]["underReplicated"]) == (1, 1)
