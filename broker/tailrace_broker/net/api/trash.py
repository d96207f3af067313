"""Deleted topics, and how they come back -> answers (docs/protocol.md, "Deleted topics")."""

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from tailrace_broker.codec.records import format_timestamp
from tailrace_broker.net.api.topics import TopicPath, describe_topic, json_response
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import Call, Parameters, Response


class TrashedTopicAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A deleted topic."""

    name: str
    id: UUID
    partitions: Annotated[int, Meta(description="Sealed ones too.")]
    sealed_partitions: Annotated[int, Meta(description="Of these, which took no more records.")]
    size_bytes: Annotated[int, Meta(description="What it takes on disk.")]
    deleted_at: str
    purge_at: Annotated[
        str, Meta(description="When its data is removed; a full disk removes it sooner.")
    ]


class TrashAnswer(msgspec.Struct):
    """All deleted topics, the latest deletion first."""

    topics: list[TrashedTopicAnswer]


class RestoreParameters(Parameters, frozen=True):
    """Of `POST /v1/trash/{topic}/restore`."""

    topic: Annotated[str, Meta(description="Its id; or its name, when no other had it.")]
    new_name: Annotated[
        str | None, Meta(description="Another name, as when the old one is in use again.")
    ] = msgspec.field(name="as", default=None)


async def list_trash(broker: Broker, _: Call) -> Response:
    """Return deleted topics, the latest deletion first."""
    topics = [
        TrashedTopicAnswer(
            name=trashed_topic.topic.name,
            id=trashed_topic.topic.topic_id,
            partitions=len(trashed_topic.topic.partitions),
            sealed_partitions=sum(each.is_sealed for each in trashed_topic.topic.partitions),
            size_bytes=trashed_topic.size_bytes,
            deleted_at=format_timestamp(trashed_topic.deleted_us).decode(),
            purge_at=format_timestamp(trashed_topic.purge_us).decode(),
        )
        for trashed_topic in await broker.trashed_topics()
    ]
    return json_response(TrashAnswer(topics))


async def restore_topic(broker: Broker, call: Call) -> Response:
    """The topic as `GET /v1/topics/{topic}` describes it."""
    parameters: RestoreParameters = call.parameters
    topic = await broker.restore_topic(parameters.topic, parameters.new_name)
    return await describe_topic(broker, call._replace(parameters=TopicPath(topic=topic.name)))
