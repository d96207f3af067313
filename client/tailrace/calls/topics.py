"""Calls about topics, their partitions' offsets, and brokers."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Unpack

from tailrace.calls.exchange import Caller
from tailrace.errors import ConnectionFailedError
from tailrace.protocol import requests
from tailrace.protocol.requests import TopicSettings
from tailrace.sansio.leaders import leader_urls, merged
from tailrace.values import (
    DeletedTopic,
    PartitionLoss,
    PartitionOffsets,
    RingStatus,
    TopicDetails,
    TopicInfo,
)


async def is_ready(self: Caller) -> bool:
    """Whether the broker serves; False also while none answers, for loops that wait."""
    with suppress(ConnectionFailedError):
        return (await self._exchange.ask(requests.ready_request())).status == 200
    return False


async def topics(self: Caller) -> list[TopicInfo]:
    """All topics, sorted by name."""
    return requests.parse_topics(await self._exchange.ask(requests.topics_request()))


async def create_topic(self: Caller, name: str, **settings: Unpack[TopicSettings]) -> TopicInfo:
    """Create, or find with the settings that are given: safe to repeat."""
    request = requests.create_topic_request(name, **settings)
    return requests.parse_topic(await self._exchange.ask(request))


async def topic(self: Caller, name: str) -> TopicDetails:
    """One topic and its partitions; TopicNotFoundError."""
    request = requests.topic_request(name)
    details = requests.parse_topic_details(await self._exchange.ask(request))
    urls = leader_urls(self._exchange.routing.url, details.partition_details)
    others = map(requests.parse_topic_details, await self._exchange.ask_all(request, urls))
    rows = merged(details.partition_details, (other.partition_details for other in others))
    return TopicDetails(details.topic, tuple(rows))


async def alter_topic(self: Caller, name: str, **settings: Unpack[TopicSettings]) -> TopicInfo:
    """Change what is given, in force at once; records that are stored stay as they are."""
    request = requests.alter_topic_request(name, **settings)
    return requests.parse_topic(await self._exchange.ask(request))


async def delete_topic(self: Caller, name: str) -> None:
    """With all its records; TopicNotFoundError."""
    requests.parse_deleted(await self._exchange.ask(requests.delete_topic_request(name)))


async def accept_partition_loss(
    self: Caller, topic: str, partition: int, *, dry_run: bool = False
) -> PartitionLoss:
    """Let a partition that has lost its end take events again; what is lost of it."""
    request = requests.accept_partition_loss_request(topic, partition, dry_run=dry_run)
    return requests.parse_partition_loss(await self._exchange.ask(request))


async def deleted_topics(self: Caller) -> list[DeletedTopic]:
    """Those that can be restored, the latest deletion first."""
    return requests.parse_deleted_topics(
        await self._exchange.ask(requests.deleted_topics_request())
    )


async def restore_topic(
    self: Caller, name_or_id: str, *, new_name: str | None = None
) -> TopicDetails:
    """Bring a deleted topic back; by its name when no other deleted one had it."""
    request = requests.restore_topic_request(name_or_id, new_name=new_name)
    return requests.parse_topic_details(await self._exchange.ask(request))


async def brokers(self: Caller) -> RingStatus:
    """The ring, its brokers and their state."""
    return requests.parse_brokers(await self._exchange.ask(requests.brokers_request()))


async def offsets(
    self: Caller, topics: Iterable[str] = (), timestamp_us: int | None = None
) -> list[PartitionOffsets]:
    """Ends and state of each partition of these topics; of all without any.

    With `timestamp_us` also the first offset whose record is not older.
    """
    request = requests.offsets_request(topics, timestamp_us)
    listing = requests.parse_offsets(await self._exchange.ask(request))
    urls = leader_urls(self._exchange.routing.url, listing)
    others = await self._exchange.ask_all(request, urls)
    return merged(listing, map(requests.parse_offsets, others))
