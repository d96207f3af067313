"""Calls that store records, and those that read them from a partition."""

import time
from collections.abc import Sequence
from typing import Unpack

from tailrace.calls.exchange import Caller
from tailrace.calls.topics import brokers
from tailrace.calls.topics import topic as topic_details
from tailrace.errors import TailraceError
from tailrace.produced import Produced
from tailrace.protocol import requests
from tailrace.protocol.records_binary import Header
from tailrace.protocol.requests import Numbered, ReadParameters
from tailrace.sansio.leaders import redirected
from tailrace.sansio.scattering import Records, Scattering
from tailrace.values import Fetched
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE


async def produce(
    self: Caller,
    topic: str,
    value: bytes,
    *,
    key: bytes | str | None = None,
    **numbered: Unpack[Numbered],
) -> Produced:
    """Store one JSON event; on return it is as durable as the topic promises.

    With `producer_id` and `sequence` it is safe to repeat: stored once.
    """
    request = requests.produce_request(
        topic, value, content_type=JSON_CONTENT_TYPE, key=key, **numbered
    )
    return requests.parse_produced(await self._exchange.ask(request))[0]


async def produce_lines(
    self: Caller,
    topic: str,
    ndjson: bytes,
    *,
    key: bytes | str | None = None,
    **numbered: Unpack[Numbered],
) -> Produced:
    """Store one JSON event a line, all of one key, as one batch: all of them or none."""
    request = requests.produce_request(
        topic, ndjson, content_type=NDJSON_CONTENT_TYPE, key=key, **numbered
    )
    return requests.parse_produced(await self._exchange.ask(request))[0]


async def produce_records(
    self: Caller,
    topic: str,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_us: Sequence[int] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
    **numbered: Unpack[Numbered],
) -> list[Produced]:
    """Store records with a key each; in partition order one element a partition, or several where
    the ring has shrunk.

    `headers`: of each record pairs of a name in UTF-8 and a value. A partition's failure is
    raised; `write_attempted` is then set when others succeeded, which are in `parts`.
    """
    records = Records(keys, values, timestamps_us, headers)
    producer_id = numbered.get("producer_id")
    scattering = Scattering(self._exchange.routing, topic, records, producer_id)
    while True:
        for url, body, indices in scattering.requests():
            request = redirected(requests.produce_records_request(topic, body, **numbered))
            try:
                stored = requests.parse_produced(await self._exchange.ask(request, url=url))
            except TailraceError as error:
                scattering.failed(error, indices)
            else:
                scattering.stored(stored)
        if not scattering.wants_routing:
            return scattering.outcome()
        try:
            ring, details = await brokers(self), await topic_details(self, topic)
        except TailraceError as error:
            scattering.cut_by(error)
            raise
        scattering.learn(ring, details, time.monotonic())


async def produce_encoded(
    self: Caller, topic: str, body: bytes, **numbered: Unpack[Numbered]
) -> list[Produced]:
    """`produce_records` of a records+binary body that is made already."""
    request = requests.produce_records_request(topic, body, **numbered)
    return requests.parse_produced(await self._exchange.ask(request))


async def read_batches(
    self: Caller,
    topic: str,
    partition: int,
    offset: int | str | None = None,
    *,
    max_bytes: int | None = None,
    **parameters: Unpack[ReadParameters],
) -> Fetched:
    """Whole batches from the one that covers `offset`; "latest", -n: n before the end.

    At least one when any is available, else at most `max_bytes` (broker's default 1 MiB).
    Records before `offset` are the caller's to drop. Without offset or time: the earliest.
    """
    request = requests.batches_request(topic, partition, offset, max_bytes=max_bytes, **parameters)
    return requests.parse_fetched(await self._exchange.ask(request))


async def read_lines(
    self: Caller,
    topic: str,
    partition: int,
    offset: int | str | None = None,
    *,
    max_records: int | None = None,
    **parameters: Unpack[ReadParameters],
) -> Fetched:
    """NDJSON of exactly min(`max_records`, available) records (broker's default 1,000).

    Starts as `read_batches` does.
    """
    request = requests.lines_request(
        topic, partition, offset, max_records=max_records, **parameters
    )
    return requests.parse_fetched(await self._exchange.ask(request))


async def last_lines(self: Caller, topic: str, count: int = 1) -> bytes:
    """NDJSON: of the last `count` of each partition, the `count` newest by record time.

    Oldest first; at most 1,000.
    """
    request = requests.last_lines_request(topic, count)
    return requests.parse_last_lines(await self._exchange.ask(request))
