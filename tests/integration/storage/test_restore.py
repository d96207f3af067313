"""Deleted topics listed and brought back, by HTTP and by the command."""

import json
import re

import pytest

from tailrace.protocol.requests import Answer
from tailrace.sync import Client
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.commands import DeleteTopic, Stamped
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import values_of
from tests.support.cli.commands import assert_fails, reported, run
from tests.support.http.http11 import Connection, document, get, messages, problem, request
from tests.support.ring.ring_disk import put_ring_state, ring_state_on

pytestmark = pytest.mark.integration

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def restore(broker: RunningBroker, topic: str, query: str = "") -> Answer:
    with Connection(broker.port) as public:
        return public.exchange(request(f"/v1/trash/{topic}/restore{query}"))


def create_and_delete(broker: RunningBroker, topic: str) -> str:
    """Its id; it has one record."""
    with Client(broker.url) as client:
        created = client.create_topic(topic, partitions_per_range=1)
        client.produce(topic, b"1")
        client.delete_topic(topic)
    return created.id


def test_the_trash_is_listed_and_a_topic_restored(shared_broker: RunningBroker, topic: str) -> None:
    topic_id = create_and_delete(shared_broker, topic)
    with Connection(shared_broker.port) as public:
        first, *_ = document(public.exchange(get("/v1/trash")))["topics"]
    assert (first["name"], first["id"], first["partitions"]) == (topic, topic_id, 1)
    assert first["sizeBytes"] > 0
    assert re.fullmatch(TIME, first["deletedAt"])
    assert re.fullmatch(TIME, first["purgeAt"])

    restored = restore(shared_broker, topic)
    assert restored.status == 200
    with Connection(shared_broker.port) as public:
        assert document(restored) == document(public.exchange(get(f"/v1/topics/{topic}")))
        produced = document(public.exchange(request(messages(topic), b"2")))
    assert (document(restored)["id"], produced["offset"]) == (topic_id, 1)


def test_what_cannot_be_restored_is_refused(shared_broker: RunningBroker, topic: str) -> None:
    assert problem(restore(shared_broker, "nosuch")) == (404, "not-in-trash")
    ids = [create_and_delete(shared_broker, topic) for _ in range(2)]
    ambiguous = restore(shared_broker, topic)
    assert problem(ambiguous) == (400, "invalid-parameter")
    assert all(topic_id in document(ambiguous)["detail"] for topic_id in ids)

    assert restore(shared_broker, ids[0]).status == 200
    assert problem(restore(shared_broker, ids[1])) == (409, "topic-exists")
    assert problem(restore(shared_broker, ids[1], "?as=a%2Fb")) == (400, "invalid-topic-name")
    renamed = restore(shared_broker, ids[1], f"?as={topic}-2")
    assert (document(renamed)["name"], document(renamed)["id"]) == (f"{topic}-2", ids[1])


def test_a_broker_killed_in_a_deletion_keeps_what_only_the_journal_had(
    broker: RunningBroker, topic: str
) -> None:
    with Client(broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
        for value in (b"1", b"2", b"3"):
            client.produce(topic, value)
    broker.kill()
    deleted = Stamped(1, DeleteTopic(topic, 10**16))
    put_ring_state(broker.data_dir, apply_command(ring_state_on(broker.data_dir), deleted))
    for _ in range(2):
        broker.restart()
    assert restore(broker, topic).status == 200

    assert values_of(broker, topic) == [b"1", b"2", b"3"]
    broker.restart()
    assert values_of(broker, topic) == [b"1", b"2", b"3"]


def test_the_command_lists_and_restores(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    topic_id = create_and_delete(shared_broker, topic)
    titles, first, *_ = reported(run("topic", "list", "--deleted", url=url)).splitlines()
    assert re.split("  +", titles) == ["TOPIC", "ID", "PARTITIONS", "SIZE", "DELETED", "KEPT UNTIL"]
    assert re.fullmatch(rf"{topic} +{topic_id} +1 +\d+\.\d KiB +{TIME} +{TIME}", first)
    as_json = json.loads(reported(run("topic", "list", "--deleted", "-o", "json", url=url)))
    assert as_json[0]["id"] == topic_id

    restored = run("topic", "restore", topic, url=url)
    assert reported(restored) == f"✓ {topic}: restored, 1 partition\n"
    create_and_delete(shared_broker, f"{topic}-b")
    reported(run("topic", "create", f"{topic}-b", url=url))
    in_use = run("topic", "restore", f"{topic}-b", url=url)
    assert_fails(in_use, 1, f'topic "{topic}-b" exists; .*--as')
    other = run("topic", "restore", f"{topic}-b", "--as", f"{topic}-c", url=url)
    assert reported(other) == f"✓ {topic}-c: restored, 1 partition\n"
    missing = run("topic", "restore", "nosuch", url=url)
    assert_fails(missing, 1, "tailrace topic list --deleted")
