"""Reads of partitions at their leaders, for groups that this broker coordinates."""

from urllib.parse import quote

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.groups.remote_log import Fetched, Wanted
from tailrace_broker.model.errors import NotLeaderError
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.net.broker import Broker, contents_of


async def fetch(broker: Broker, wanted: Wanted) -> Fetched:
    """Read where the partition is led. TailraceError of the leader.

    ReadMemoryFullError at once: who reads for a poll waits for memory itself.
    """
    try:
        log = broker.hosted(wanted.topic).log_of(wanted.partition)
    except NotLeaderError as error:
        leader = error.members["leader"]
        assert isinstance(leader, int)
    else:
        return Fetched(log.log_start, log.high_watermark, memoryview(b""), is_here=True)
    offset = "latest" if wanted.offset is None else wanted.offset
    target = (
        f"/v1/topic/{quote(wanted.topic, safe='')}/partitions/{wanted.partition}/records"
        f"?offset={offset}&maxBytes={wanted.max_bytes}&waitMs={wanted.wait_ms}"
    )
    request = ForwardedCall(0, target.encode(), BATCH_CONTENT_TYPE)
    answer = await broker.forward_call(leader, request, wanted.wait_ms, waits_for_memory=False)
    content = await contents_of(answer)
    log_start = int(answer.headers["tailrace-log-start"])
    return Fetched(log_start, int(answer.headers["tailrace-high-watermark"]), memoryview(content))
