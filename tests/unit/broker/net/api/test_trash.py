"""Deleted topics as the API lists them."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from tailrace_broker.model.trashed_topic import TrashedTopic
from tailrace_broker.net.api.trash import list_trash
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import Call
from tests.support.storage.batches import SPLIT_TOPIC, TIME_US


async def trashed() -> list[TrashedTopic]:
    return [TrashedTopic(SPLIT_TOPIC, TIME_US, TIME_US + 1_000_000, 4096)]


async def test_a_deleted_topic_has_its_sealed_partitions_counted_apart() -> None:
    broker = cast("Broker", SimpleNamespace(trashed_topics=trashed))
    answer = await list_trash(broker, Call(None, "", "", b""))
    assert isinstance(answer.body, Sequence)
    (topic,) = json.loads(b"".join(answer.body))["topics"]
    assert (topic["partitions"], topic["sealedPartitions"]) == (3, 1)
