"""A broker of a ring is killed: what the command line says of its partitions, and of copies."""

import json
import re
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.cli.commands import assert_fails, reported, run
from tests.support.ring.local_ring import founded_ring

pytestmark = pytest.mark.integration

TAKEN_FOR_DEAD_S_MAX = 30.0


def test_a_dead_brokers_partitions_are_not_shown_as_open(tmp_path: Path) -> None:
    with founded_ring(tmp_path, copies=1) as ring:
        url = ring.brokers[0].url
        reported(run("topic", "create", "flights", "--partitions-per-range", "1", url=url))
        ring.kill(1)
        ring.until(lambda: ring.ring(0)["ranges"][1]["state"] == "waiting", TAKEN_FOR_DEAD_S_MAX)
        table = reported(run("topic", "describe", "flights", url=url)).splitlines()
        document = json.loads(reported(run("topic", "describe", "flights", "-o", "json", url=url)))
        offsets = ring.call(0, "GET", "/v1/offsets?topic=flights")["topics"][0]["partitions"]

    assert table[1].split()[3] == "LEADER"
    assert [line.split()[3:5] for line in table[2:]] == [["0", "0"], ["1", "down"], ["2", "2"]]
    assert [line.split()[-1] for line in table[2:]] == ["open", "waiting", "open"]
    states = [partition_detail["state"] for partition_detail in document["partitionDetails"]]
    assert states == [row["state"] for row in offsets] == ["open", "waiting", "open"]


def test_the_doctor_calls_no_range_led_when_most_of_the_voters_are_away(tmp_path: Path) -> None:
    with founded_ring(tmp_path) as ring:
        url = ring.brokers[2].url
        for ordinal in (0, 1):
            ring.kill(ordinal)
        checked = run("doctor", url=url)

    lines = checked.stdout.decode().splitlines()
    assert checked.returncode == 1
    assert any(
        re.match(r"✗ ranges +not known which have a leader: .* must be up .*; start the", line)
        for line in lines
    ), lines


def test_consume_prints_what_can_be_read_and_then_names_the_partitions_that_cannot(
    tmp_path: Path,
) -> None:
    with founded_ring(tmp_path, copies=1) as ring:
        url = ring.brokers[0].url
        reported(run("topic", "create", "flights", "--partitions-per-range", "1", url=url))
        for key in map(str, range(20)):
            reported(run("produce", "flights", key, "--key", key, url=url))
        whole = reported(run("consume", "flights", url=url)).splitlines()
        ring.kill(1)
        ring.until(lambda: ring.ring(0)["ranges"][1]["state"] == "waiting", TAKEN_FOR_DEAD_S_MAX)
        part = run("consume", "flights", url=url)
        unread = run("consume", "flights", "--partition", "1", url=url)

    lines = part.stdout.decode().splitlines()
    assert len(whole) == 20
    assert lines == [line for line in whole if json.loads(line)["partition"] != 1]
    assert 0 < len(lines) < 20
    assert part.returncode == 1
    assert part.stderr.decode().endswith(
        'error: not read: partition 1 of topic "flights": no broker that leads it can be reached: '
        "see tailrace ring status\n"
    )
    assert (unread.returncode, unread.stdout) == (1, b"")


def test_status_says_how_many_copies_there_are_and_which_ranges_lack_theirs(
    tmp_path: Path,
) -> None:
    with founded_ring(tmp_path, copies=1) as ring:
        url = ring.brokers[0].url
        ring.wait_whole()
        whole = reported(run("status", url=url)).splitlines()
        ring.kill(2)
        ring.until(lambda: ring.ring(0)["ranges"][2]["state"] == "waiting", TAKEN_FOR_DEAD_S_MAX)
        lacking = reported(run("status", url=url)).splitlines()
        document = json.loads(reported(run("status", "-o", "json", url=url)))

    assert "ranges 3   copies 1   under-replicated 0" in whole[0]
    assert whole[-1].startswith("copies 1: each event is on one broker")
    assert "brokers 2/3   ranges 3   copies 1   under-replicated 1" in lacking[0]
    assert (document["ring"]["copies"], document["ring"]["underReplicated"]) == (1, 1)


def test_status_counts_the_copies_that_are_away_where_the_ring_cannot_agree_any_more(
    tmp_path: Path,
) -> None:
    """The committed in-sync replicas are still three then."""
    with founded_ring(tmp_path) as ring:
        url = ring.brokers[0].url
        ring.wait_whole()
        assert "copies 3   under-replicated 0" in reported(run("status", url=url))
        ring.kill(1)
        ring.kill(2)
        ring.until(
            lambda: (
                not any(each["alive"] for each in ring.call(0, "GET", "/v1/brokers")["brokers"][1:])
            ),
            TAKEN_FOR_DEAD_S_MAX,
        )
        alone = reported(run("status", url=url)).splitlines()

    assert "brokers 1/3   ranges 3   copies 3   under-replicated 3" in alone[0]


def test_produce_says_when_a_leader_or_the_broker_that_was_given_does_not_answer(
    tmp_path: Path,
) -> None:
    """The given one by its number, where it is of a ring in .tailrace."""
    top = tmp_path / ".tailrace"
    with founded_ring(top, copies=1, forward_seconds=1) as ring:
        (top / "ring.json").write_text(json.dumps({"brokers": 3, "port": ring.brokers[0].port}))
        url, dead = ring.brokers[0].url, ring.brokers[1].url
        with Client(url) as client:
            client.create_topic("t", partitions_per_range=1)
            led_by_1 = next(key for key in map(str, range(100)) if leader_of(client, key) == 1)
        ring.kill(1)
        words = ("produce", "t", "1", "--key", led_by_1)
        leaderless = run(*words, url=url, cwd=tmp_path)
        local = run(*words, url=dead, cwd=tmp_path)
        ring.kill(0)
        ring.kill(2)
        stopped = run(*words, url=dead, cwd=tmp_path)

    assert_fails(leaderless, 1, 'No leader: the leader of partition 1 of topic "t" could not be')
    assert_fails(
        local,
        1,
        rf"broker 1 of the ring in .tailrace does not answer at {dead} \(.*\)\. Start it: "
        "tailrace dev start 1",
    )
    assert_fails(stopped, 1, "Start one: tailrace dev")


def leader_of(client: Client, key: str) -> int | None:
    partition = client.produce("t", b"1", key=key).partition
    return client.topic("t").partition_details[partition].leader
