"""Groups by the client's single requests, against a real broker."""

import json
from collections.abc import Iterator

import pytest

from tailrace.errors import (
    ConsumerNotRegisteredError,
    GroupNotFoundError,
    GroupNotIdleError,
    ProblemError,
    StaleDeliveryError,
)
from tailrace.protocol.group_values import MovedPartition, OnNewGroup, TopicPartition
from tailrace.sync import Client
from tailrace.wire import BATCH_MAGIC
from tests.support.broker.fixtures import RunningBroker

pytestmark = pytest.mark.integration

EARLIEST: OnNewGroup = "startFromEarliest"


@pytest.fixture
def client(shared_broker: RunningBroker, topic: str) -> Iterator[Client]:
    """With a topic of one partition, and ten records of two batches in it."""
    with Client(shared_broker.url) as opened:
        opened.create_topic(topic, partitions_per_range=1)
        for start in (0, 5):
            lines = b"".join(b"%d\n" % n for n in range(start, start + 5))
            opened.produce_lines(topic, lines, key="k")
        yield opened


def test_a_consumer_by_single_requests(client: Client, topic: str) -> None:
    registered = client.register("c1", topic, [topic], on_new_group=EARLIEST, session_ms=60_000)
    again = client.register("c1", topic, [topic], on_new_group=EARLIEST, session_ms=60_000)
    epoch = registered.assignment_epoch
    lines = client.poll("c1", delivery=0, assignment_epoch=epoch, form="ndjson", max_records=3)
    same = client.poll("c1", delivery=0, assignment_epoch=epoch, form="json")
    with pytest.raises(StaleDeliveryError):
        client.commit("c1", delivery=lines.delivery + 1, assignment_epoch=epoch)
    batches = client.poll("c1", delivery=lines.delivery)
    nothing = client.poll("c1", delivery=batches.delivery, wait_ms=0)
    client.commit("c1", delivery=batches.delivery)
    client.goodbye("c1")

    assert again == registered
    assert (registered.topics, registered.session_ms) == ((topic,), 60_000)
    assert [json.loads(line)["value"] for line in lines.body.splitlines()] == [0, 1, 2]
    [element] = json.loads(same.body)
    assert (element["startOffset"], element["values"]) == ("0", [0, 1, 2])
    assert same.delivery == lines.delivery
    assert int.from_bytes(batches.body[:4], "little") == BATCH_MAGIC
    assert batches.start_offsets == {(topic, 0): 3}
    assert (nothing.body, nothing.retry_after_s) == (b"", 1.0)
    for request in (client.poll, client.commit, client.goodbye):
        with pytest.raises(ConsumerNotRegisteredError):
            request("c1")


def test_a_group_is_looked_at(client: Client, topic: str) -> None:
    client.register("c2", topic, [topic], on_new_group=EARLIEST)
    client.poll("c2", max_records=4, form="ndjson")
    client.commit("c2")
    [listed] = [group for group in client.groups() if group.group == topic]
    details = client.group(topic)
    client.goodbye("c2")

    assert details.info == listed
    assert (listed.state, listed.members, listed.topics) == ("active", 1, (topic,))
    assert (listed.lag, listed.lost) == (6, 0)
    assert listed.oldest_unread is not None
    [consumer] = details.consumers
    assert (consumer.consumer_id, consumer.session_ms) == ("c2", 120_000)
    assert consumer.partitions == (TopicPartition(topic, 0),)
    [partition] = details.partitions
    assert (partition.consumer, partition.state) == ("c2", "open")
    assert (partition.position, partition.committed, partition.lag) == (4, 4, 6)


def test_an_idle_group_is_moved_and_deleted(client: Client, topic: str) -> None:
    client.register("c3", topic, [topic], on_new_group=EARLIEST)
    with pytest.raises(GroupNotIdleError):
        client.reset_group(topic, to="latest")
    planned = client.reset_group(topic, to="latest", dry_run=True)
    client.goodbye("c3")
    moved = client.reset_group(topic, offsets={topic: {0: 7}})
    back = client.reset_group(topic, timestamp_us=0, topics=[topic])

    assert (planned.dry_run, planned.is_idle, planned.moved_forward) == (True, False, 10)
    assert moved.partitions == (MovedPartition(topic, 0, 0, 7),)
    assert (back.moved_back, back.dry_run) == (7, False)
    with pytest.raises(ProblemError, match="11"):
        client.reset_group(topic, offsets={topic: {0: 11}})
    client.delete_group(topic)
    for request in (client.group, client.delete_group):
        with pytest.raises(GroupNotFoundError):
            request(topic)


def test_a_reader_with_offsets_of_its_own_has_a_lag(client: Client, topic: str) -> None:
    client.publish_offsets(topic, "spark", {topic: {0: 8}})

    info = client.group(topic).info
    assert (info.state, info.members, info.lag) == ("spark", 0, 2)
