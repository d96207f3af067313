"""The options and the output of `tailrace group reset`."""

import argparse
import json
import re

import pytest

from tailrace.cli.lib.parser import parse
from tailrace.cli.verbs.group import LIST, RESET, summary_of
from tailrace.protocol.group_values import GroupInfo, GroupReset, MovedPartition
from tailrace.sync import Client

URL = "http://127.0.0.1:1"  # where nothing is asked


def moved(back: int, forward: int, *, dry_run: bool, is_idle: bool = True) -> GroupReset:
    """Of three partitions one that stays."""
    partitions = (
        MovedPartition("t", 0, back, 0),
        MovedPartition("t", 1, 0, forward),
        MovedPartition("t", 2, 7, 7),
    )
    return GroupReset("g", dry_run, is_idle, partitions, back, forward)


@pytest.mark.parametrize(
    ("reset", "text"),
    [
        (moved(188_204, 0, dry_run=False), "✓ g: moved 1 partition back by 188,204 events"),
        (moved(0, 1, dry_run=False), "✓ g: moved 1 partition forward by 1 event"),
        (
            moved(2, 1, dry_run=False),
            "✓ g: moved 2 partitions back by 2 events and forward by 1 event",
        ),
        (moved(0, 0, dry_run=False), "✓ g: is there already"),
        (moved(0, 0, dry_run=True), "would move nothing; group is idle: yes"),
        (
            moved(5, 0, dry_run=True, is_idle=False),
            "would move 1 partition back by 5 events; group is idle: no, stop its consumers first",
        ),
    ],
)
def test_a_reset_is_reported_in_events(reset: GroupReset, text: str) -> None:
    assert summary_of(reset) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "-"), (1, "t0"), (3, "t0,t1,t2"), (4, "4 topics"), (1_000, "1,000 topics")],
)
def test_topics_are_named_while_they_are_few(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, text: str
) -> None:
    topics = tuple(f"t{number}" for number in range(count))
    found = GroupInfo("billing", "active", 1, topics, 0, None, 0)
    monkeypatch.setattr(Client, "groups", lambda _: [found])
    LIST.run(output="table", url=URL)
    table = capsys.readouterr().out.splitlines()
    LIST.run(output="json", url=URL)
    document = json.loads(capsys.readouterr().out)

    assert re.split("  +", table[1])[2] == text
    assert document[0]["topics"] == list(topics)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--to earliest", "to", "earliest"),
        ("--to latest", "to", "latest"),
        ("--to 1970-01-01T00:00:01Z", "to", 1_000_000),
        ("--to 1970-01-01T01:00:01+01:00", "to", 1_000_000),
        ("--to-offsets t:0=12,1=30", "offsets", [{"t": {0: 12, 1: 30}}]),
        ("--to-offsets t:0=1 --to-offsets u:0=2", "offsets", [{"t": {0: 1}}, {"u": {0: 2}}]),
        ("--to earliest --topic t --topic u", "topics", ["t", "u"]),
    ],
)
def test_where_to_is_a_place_a_time_or_offsets(words: str, name: str, value: object) -> None:
    assert parse("group reset", RESET, ["g", *words.split()])[name] == value


@pytest.mark.parametrize("word", ["", "t", "t:", ":0=1", "t:0", "t:0=1,", "t:0=-1", "t:a=1"])
def test_anything_else_is_no_map_of_offsets(word: str) -> None:
    [parameter] = [each for each in RESET.parameters if "--to-offsets" in each.names]

    with pytest.raises(argparse.ArgumentTypeError, match="like flights:0=12,1=30"):
        parameter.settings["type"](word)
