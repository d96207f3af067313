"""Accepts what a partition has lost, so that it goes on (docs/operations.md)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from tailrace_broker.net.api.topics import json_response
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import Call, Parameters, PartitionId, Response, TopicName


class LossParameters(Parameters, frozen=True):
    """Of `POST /v1/topics/{topic}/partitions/{partition}/accept-loss`."""

    topic: TopicName
    partition: PartitionId
    dry_run: Annotated[bool, Meta(description="`true`: only say what would be lost.")] = False


class LossAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """What is lost of a partition."""

    topic: str
    partition: int
    first_offset: Annotated[int, Meta(description="Of the records that are lost.")]
    last_offset: Annotated[
        int, Meta(description="Of the last record that is known to have been acknowledged.")
    ]
    next_offset: Annotated[
        int,
        Meta(description="Where it goes on: no record that is lost can have had it."),
    ]
    dry_run: bool


async def accept_loss(broker: Broker, call: Call) -> Response:
    """Answer what is lost, and accept it unless it is a dry run."""
    parameters: LossParameters = call.parameters
    lost = await broker.accept_loss(
        parameters.topic, parameters.partition, dry_run=parameters.dry_run
    )
    return json_response(
        LossAnswer(
            topic=parameters.topic,
            partition=parameters.partition,
            first_offset=lost.first_offset,
            last_offset=lost.proven_end - 1,
            next_offset=lost.next_offset,
            dry_run=parameters.dry_run,
        )
    )
