"""What a broker stores, put there and taken out by HTTP."""

import json
from random import Random

import msgspec

from tailrace.sync import Client
from tailrace_broker.core.ring.topics import topic_of
from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import Connection, messages, new_topic, request
from tests.support.ring.ring_disk import put_topics, ring_state_on
from tests.support.storage.batches import SPLIT_TOPIC

# Where the first partition of `split` ends, and its children begin.
SPLIT_END = 5
assert SPLIT_TOPIC.partitions[0].sealed_end == SPLIT_END
LARGE_COUNT = 12
LARGE_BYTES = 400_000


def values_of(broker: RunningBroker, topic: str) -> list[bytes]:
    """The stored values' JSON texts, in order of partition and offset."""
    values = []
    with Client(broker.url) as client:
        for row in client.offsets([topic]):
            lines = client.read_lines(topic, row.partition, "earliest", max_records=100_000).body
            values += [
                line.partition(b'"value":')[2].removesuffix(b"}") for line in lines.splitlines()
            ]
    return values


def produce_large(
    broker: RunningBroker, topic: str, *, value_bytes: int = LARGE_BYTES
) -> list[str]:
    """Create a topic of one partition with records for several pieces of an answer; the values."""
    values = [Random(index).randbytes(value_bytes // 2).hex() for index in range(LARGE_COUNT)]
    with Connection(broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        for value in values:
            body = json.dumps(value).encode()
            assert public.exchange(request(messages(topic), body)).status == 200
    return values


def split(broker: RunningBroker, topic: str) -> list[bytes]:
    """Restart it with a topic whose first partition is sealed and has two children, which are
    empty; the values in the first.
    """
    values = [b"%d" % number for number in range(SPLIT_END)]
    with Connection(broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        for value in values:
            assert public.exchange(request(messages(topic), value)).status == 200
    broker.stop()
    state = ring_state_on(broker.data_dir)
    created = topic_of(state, state.topics[topic])
    sealed, *children = SPLIT_TOPIC.partitions
    parent = msgspec.structs.replace(sealed, epoch=created.partitions[0].epoch)
    # Their first epoch begins with the restart.
    parts = [msgspec.structs.replace(child, epoch=child.epoch - 1) for child in children]
    put_topics(broker.data_dir, msgspec.structs.replace(created, partitions=(parent, *parts)))
    broker.restart()
    return values
