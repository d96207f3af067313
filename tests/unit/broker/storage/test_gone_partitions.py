"""Files of partitions that the ring's state names no more are removed."""

from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.commands import TrimSealed
from tailrace_broker.storage.gone_partitions import remove_gone
from tests.support.ring.states import done, led, stepped, with_topic


class FixedDirectory:
    """Of one topic."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inventory = self
        self.forgotten: list[int] = []

    def partition_path(self, topic_id: object, partition: int) -> Path:
        return self.root / str(topic_id) / str(partition)

    def cut_segments(self, topic_id: object, partition: int, base_offset: int | None) -> None:
        assert base_offset is None
        self.forgotten.append(partition)


def test_files_of_partitions_that_are_gone_are_removed(tmp_path: Path) -> None:
    state = stepped(with_topic(led(registered=1)))
    topic_id = state.topics["orders"].id
    directory: Any = FixedDirectory(tmp_path)
    topic = topic_of(state, state.topics["orders"])
    last = topic.partitions[-1].partition
    for partition in range(last + 2):
        directory.partition_path(topic_id, partition).mkdir(parents=True)
    (tmp_path / str(topic_id) / "topic.json").touch()

    remove_gone(directory, topic)
    assert directory.forgotten == []
    trimmed = done(state, *[TrimSealed(0, 0, 1, {topic_id: (100, 7)})] * 2)
    remove_gone(directory, topic_of(trimmed, trimmed.topics["orders"]))

    left = {each.name for each in (tmp_path / str(topic_id)).iterdir()}
    assert left == {"topic.json", *map(str, range(1, last + 2))}
    assert directory.forgotten == [0]


def test_what_was_set_aside_of_partitions_that_are_gone_is_removed(tmp_path: Path) -> None:
    """Whether the log that was damaged has been fetched again or not."""
    state = stepped(with_topic(led(registered=1)))
    topic_id = state.topics["orders"].id
    directory: Any = FixedDirectory(tmp_path)
    topic_path = directory.partition_path(topic_id, 0).parent
    for name in ("0.damaged/log", "1", "1.damaged/log", "x.damaged"):
        (topic_path / name).mkdir(parents=True)

    trimmed = done(state, *[TrimSealed(0, 0, 1, {topic_id: (100, 7)})] * 2)
    remove_gone(directory, topic_of(trimmed, trimmed.topics["orders"]))

    assert {each.name for each in topic_path.iterdir()} == {"1", "1.damaged", "x.damaged"}


def test_files_that_the_disk_does_not_remove_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = stepped(with_topic(led(registered=1)))
    topic_id = state.topics["orders"].id
    directory: Any = FixedDirectory(tmp_path)
    trimmed = done(state, *[TrimSealed(0, 0, 1, {topic_id: (100, 7)})] * 2)
    topic = topic_of(trimmed, trimmed.topics["orders"])
    remove_gone(directory, topic)  # of a topic without a record there is no directory
    directory.partition_path(topic_id, 0).mkdir(parents=True)

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tailrace_broker.storage.gone_partitions.shutil.rmtree", refuse)

    remove_gone(directory, topic)

    assert directory.partition_path(topic_id, 0).exists()
