"""`tailrace consume`: how records are printed, of which topics, from which time; which broker."""

import json
import re
import time
from pathlib import Path

import pytest

import tailrace
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.cli.commands import (
    assert_fails,
    ndjson,
    records_of,
    reported,
    run,
    started,
    values_of,
)

pytestmark = pytest.mark.integration

LOOKALIKE = b'{"base64":"/w=="}'


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name of this test alone."""
    return tmp_path.name


@pytest.fixture
def mixed(shared_broker: RunningBroker, topic: str) -> str:
    """A topic of one partition with values of all kinds."""
    with Client(shared_broker.url) as client:
        client.create_topic(topic, partitions_per_range=1, json_check=False)
        for value in ("hällo wörld".encode(), b'"hello"', b'{"n" : 1.50}', b"\xff\x00", LOOKALIKE):
            client.produce(topic, value, key="k")
    return topic


@pytest.fixture
def pair(shared_broker: RunningBroker, topic: str) -> tuple[str, str]:
    """Two topics, of events 0 to 2 and 10 to 12, all of the second later than the first's."""
    names = f"{topic}-a", f"{topic}-b"
    with Client(shared_broker.url) as client:
        for name, first in zip(names, (0, 10), strict=True):
            client.create_topic(name, partitions_per_range=1)
            client.produce_lines(name, ndjson(range(first, first + 3)))
    return names


# --- how they are printed -------------------------------------------------------------------------


def test_plain_text_is_printed_as_text_and_marked_as_such(
    shared_broker: RunningBroker, mixed: str
) -> None:
    records = records_of(run("consume", mixed, url=shared_broker.url))
    table = reported(run("consume", mixed, "-o", "table", url=shared_broker.url)).splitlines()

    assert [(record["value"], record.get("valueEncoding")) for record in records] == [
        ("hällo wörld", "text"),
        ("hello", None),
        ({"n": 1.5}, None),
        ({"base64": "/wA="}, "base64"),
        ({"base64": "/w=="}, None),
    ]
    assert table[1].endswith("  k    hällo wörld")


def test_values_alone_are_printed_byte_by_byte(shared_broker: RunningBroker, mixed: str) -> None:
    result = run("consume", mixed, "--value-only", url=shared_broker.url)

    assert result.stdout == (
        'hällo wörld\n"hello"\n{"n" : 1.50}\n'.encode() + b"\xff\x00\n" + LOOKALIKE + b"\n"
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_format_says_what_is_printed_of_each_record(
    shared_broker: RunningBroker, mixed: str
) -> None:
    url = shared_broker.url
    lines = run("consume", mixed, "--max", "2", "--format", r"%t %p %o %k=%v [%h]\n", url=url)
    times = reported(run("consume", mixed, "--format", "%T%%", url=url))

    assert lines.stdout.decode() == f'{mixed} 0 0 k=hällo wörld []\n{mixed} 0 1 k="hello" []\n'
    assert re.fullmatch(r"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z%){5}", times)
    refused = run("consume", mixed, "--format", "%k %s", url=url)
    assert_fails(refused, 2, r'--format: "%s" is none of %t %p %o %T %k %v %h %%')


def test_a_group_prints_in_these_forms_too(shared_broker: RunningBroker, mixed: str) -> None:
    url = shared_broker.url
    texts = run("consume", mixed, "--group", mixed, "--max", "1", "--value-only", url=url)
    [record] = records_of(run("consume", mixed, "--group", mixed, "--max", "1", url=url))
    rest = run("consume", mixed, "--group", mixed, "--format", r"%t %o\n", url=url)

    assert texts.stdout.decode() == "hällo wörld\n"
    assert record["value"] == "hello"
    assert reported(rest) == "".join(f"{mixed} {offset}\n" for offset in (2, 3, 4))


# --- of which topics ------------------------------------------------------------------------------


def test_several_topics_are_printed_with_their_names(
    shared_broker: RunningBroker, pair: tuple[str, str]
) -> None:
    first, second = pair
    url = shared_broker.url
    named = records_of(run("consume", *pair, url=url))
    matching = records_of(run("consume", f"{first[:-1]}[ab]", url=url))
    last = records_of(run("consume", *pair, "--last", "4", url=url))
    table = reported(run("consume", *pair, "-o", "table", url=url)).splitlines()

    expected = [(first, n) for n in range(3)] + [(second, n) for n in range(10, 13)]
    assert [(each["topic"], each["value"]) for each in named] == expected
    assert matching == named
    assert [(each["topic"], each["value"]) for each in last] == expected[2:]
    assert table[0].split() == [
        "TOPIC",
        "PARTITION",
        "OFFSET",
        "TIMESTAMP",
        "KEY",
        "VALUE",
        "HEADERS",
    ]
    assert [line.split()[0] for line in table[1:]] == [first] * 3 + [second] * 3


def test_one_topic_that_is_named_is_printed_without_its_name(
    shared_broker: RunningBroker, pair: tuple[str, str]
) -> None:
    [of_name, *_] = records_of(run("consume", pair[0], url=shared_broker.url))
    [of_pattern, *_] = records_of(run("consume", f"{pair[0]}*", url=shared_broker.url))

    assert "topic" not in of_name
    assert of_pattern == {"topic": pair[0], **of_name}


def test_several_topics_are_followed(shared_broker: RunningBroker, pair: tuple[str, str]) -> None:
    with (
        Client(shared_broker.url) as client,
        started("consume", f"{pair[0][:-1]}*", "-f", url=shared_broker.url) as process,
    ):
        assert process.stdout is not None
        stored = {json.loads(next(process.stdout))["value"] for _ in range(6)}
        for n, name in enumerate(pair * 2):
            client.produce(name, b"%d" % n)
            record = json.loads(next(process.stdout))
            assert (record["topic"], record["value"]) == (name, n)

    assert stored == {0, 1, 2, 10, 11, 12}


def test_a_group_reads_several_topics(
    shared_broker: RunningBroker, pair: tuple[str, str], topic: str
) -> None:
    pattern = f"{pair[0][:-1]}*"
    records = records_of(run("consume", pattern, "--group", topic, url=shared_broker.url))
    again = run("consume", *pair, "--group", topic, url=shared_broker.url)
    with Client(shared_broker.url) as client:
        info = client.group(topic).info

    assert {(record["topic"], record["value"]) for record in records} == {
        *((pair[0], n) for n in range(3)),
        *((pair[1], n) for n in range(10, 13)),
    }
    assert records_of(again) == []
    assert (info.topics, info.lag) == (pair, 0)


def test_a_pattern_that_matches_no_topic_is_refused(
    shared_broker: RunningBroker, topic: str
) -> None:
    refused = run("consume", f"{topic}-*", url=shared_broker.url)

    assert_fails(refused, 1, r'no topic matches ".*-\*". Those that exist: tailrace topic list')


# --- from which time ------------------------------------------------------------------------------


def test_records_from_the_beginning_from_a_date_and_of_the_last_hour_are_printed(
    shared_broker: RunningBroker, topic: str
) -> None:
    hour_us = 3_600_000_000
    now_us = time.time_ns() // 1000
    # 2025-11-24T16:00:00Z, an hour and a half ago, half an hour ago
    times_us = [1_764_000_000_000_000, now_us - 3 * hour_us // 2, now_us - hour_us // 2]
    with Client(shared_broker.url) as client:
        client.produce_records(topic, [b"k"] * 3, [b"0", b"1", b"2"], times_us)

    def values_from(*options: str) -> list[object]:
        return values_of(run("consume", topic, *options, url=shared_broker.url))

    assert values_from("--from-beginning") == [0, 1, 2]
    assert values_from("--at", "2025-11-24") == [0, 1, 2]
    assert values_from("--at", "2025-11-24T16:00") == [0, 1, 2]
    assert values_from("--at", "2025-11-25") == [1, 2]
    assert values_from("--since", "1h") == [2]
    assert values_from("--since", "2h") == [1, 2]


# --- which broker ---------------------------------------------------------------------------------


def test_a_broker_is_named_without_its_scheme_and_before_the_verb(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{shared_broker.port}"
    with tailrace.connect(address) as client:
        client.produce(topic, b"1")

    assert values_of(run("consume", topic, "--url", address)) == [1]
    assert values_of(run("--url", address, "consume", topic)) == [1]
    assert values_of(run(f"--url={address}", "consume", topic)) == [1]
    assert values_of(run("consume", topic, url=address)) == [1]
    assert topic in reported(run("--url", address, "topic", "list", cwd=tmp_path))
