"""What `tailrace topic restore` and `tailrace topic list --deleted` say of a topic."""

import json
import re

import pytest

from tailrace.cli.verbs import topic, trash
from tailrace.errors import TopicNotFoundError
from tailrace.sync import Client
from tailrace.values import DeletedTopic, TopicDetails, TopicInfo

URL = "http://127.0.0.1:1"  # where nothing is asked
COUNTS = [
    (1, 0, "1 partition"),
    (16, 12, "4 partitions (12 sealed)"),
    (13, 12, "1 partition (12 sealed)"),
]


def deleted(count: int, sealed: int) -> DeletedTopic:
    return DeletedTopic("orders", "1", count, 512, "then", "later", sealed)


@pytest.mark.parametrize(("count", "sealed", "text"), COUNTS)
def test_what_is_restored_is_counted_by_what_takes_events(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    sealed: int,
    text: str,
) -> None:
    info = TopicInfo("orders", "1", 4, True, "fsync", count, 3, sealed_partitions=sealed)
    monkeypatch.setattr(Client, "restore_topic", lambda *_, **__: TopicDetails(info, ()))
    trash.RESTORE.run(topic="orders", new_name=None, dry_run=False, output="table", url=URL)
    assert capsys.readouterr().out == f"✓ orders: restored, {text}\n"


@pytest.mark.parametrize(("count", "sealed", "text"), COUNTS)
def test_a_plan_to_restore_counts_alike(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    sealed: int,
    text: str,
) -> None:
    def missing(_: Client, name: str) -> TopicDetails:
        raise TopicNotFoundError(type="topic-not-found", title=name, status=404)

    monkeypatch.setattr(Client, "topic", missing)
    monkeypatch.setattr(Client, "deleted_topics", lambda _: [deleted(count, sealed)])
    for output in ("table", "json"):
        trash.RESTORE.run(topic="orders", new_name=None, dry_run=True, output=output, url=URL)
    said, document = capsys.readouterr().out.split("\n", 1)
    assert said == f"would restore orders: {text}, 512 bytes, deleted then"
    plan = json.loads(document)
    assert (plan["partitions"], plan["sealedPartitions"]) == (count, sealed)


def test_deleted_topics_are_listed_as_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Client, "deleted_topics", lambda _: [deleted(16, 12), deleted(4, 0)])
    topic.LIST.run(deleted=True, output="table", url=URL)
    _, *rows = capsys.readouterr().out.splitlines()
    assert [re.split("  +", row)[2] for row in rows] == ["4 (12 sealed)", "4"]
