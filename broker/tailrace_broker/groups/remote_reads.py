"""Reads of partitions that this broker has no replica of, for groups that it coordinates."""

from collections.abc import AsyncIterator
from urllib.parse import quote

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.groups.remote_log import Fetched, Wanted
from tailrace_broker.net.broker import Broker, LeaderAnswer


async def fetch(broker: Broker, wanted: Wanted) -> Fetched:
    """Read where the partition is led, this broker included. TailraceError of the leader."""
    hosted = broker.hosted(wanted.topic)

    async def here() -> Fetched:
        log = hosted.log_of(wanted.partition)
        offset = log.high_watermark if wanted.offset is None else wanted.offset
        batches = await log.read(offset, wanted.max_bytes)
        body = b"".join(bytes(buffer) for batch in batches for buffer in batch.buffers)
        return Fetched(log.log_start, log.high_watermark, memoryview(body))

    offset = "latest" if wanted.offset is None else wanted.offset
    target = (
        f"/v1/topic/{quote(wanted.topic, safe='')}/partitions/{wanted.partition}/records"
        f"?offset={offset}&maxBytes={wanted.max_bytes}&waitMs={wanted.wait_ms}"
    )
    answer = await broker.read_at_leader(
        hosted, wanted.partition, target.encode(), BATCH_CONTENT_TYPE, here
    )
    return answer if isinstance(answer, Fetched) else await _fetched(answer)


async def _fetched(answer: LeaderAnswer) -> Fetched:
    body = answer.body
    if isinstance(body, AsyncIterator):
        content = b"".join([bytes(part) async for part in body])
    else:
        content = b"".join(bytes(part) for part in body)
    log_start = int(answer.headers["tailrace-log-start"])
    return Fetched(log_start, int(answer.headers["tailrace-high-watermark"]), memoryview(content))
