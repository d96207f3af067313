"""Reads of partitions where they are served, for groups that this broker coordinates."""

from collections.abc import Sequence
from urllib.parse import quote

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.groups.remote_log import Fetched, Wanted
from tailrace_broker.model.errors import NoLeaderError, NotLeaderError, NotReadyError
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.net.broker import Broker, contents_of


async def fetch(broker: Broker, wanted: Wanted) -> Fetched:
    """Read where the partition is led; a sealed one from any whole copy. TailraceError.

    ReadMemoryFullError at once: who reads for a poll waits for memory itself.
    """
    hosted = broker.hosted_for_brokers(wanted.topic)
    try:
        log = hosted.log_of(wanted.partition)
    except NotLeaderError as error:
        problem: NotLeaderError | NoLeaderError | NotReadyError = error
        leader = error.members["leader"]
        assert isinstance(leader, int)
    else:
        return Fetched(log.log_start, log.high_watermark, memoryview(b""), is_here=True)
    range_id = hosted.topic.at(wanted.partition).range_id
    for ordinal in (leader, *_other_copies(broker, range_id, leader)):
        try:
            return await _fetch_from(broker, ordinal, wanted)
        except (NotLeaderError, NoLeaderError, NotReadyError) as error:
            problem = error
    raise problem


def _other_copies(broker: Broker, range_id: int, leader: int) -> Sequence[int]:
    """Other brokers that have all of a range, if it is sealed."""
    state = broker.ring.state
    owner = None if state is None else state.ranges.get(range_id)
    copies = () if owner is None or not owner.is_sealed else owner.holders
    return [each for each in copies if each not in (leader, broker.ordinal)]


async def _fetch_from(broker: Broker, ordinal: int, wanted: Wanted) -> Fetched:
    offset = "latest" if wanted.offset is None else wanted.offset
    target = (
        f"/v1/topic/{quote(wanted.topic, safe='')}/partitions/{wanted.partition}/records"
        f"?offset={offset}&maxBytes={wanted.max_bytes}&waitMs={wanted.wait_ms}"
    )
    request = ForwardedCall(0, target.encode(), BATCH_CONTENT_TYPE)
    answer = await broker.forward_call(ordinal, request, wanted.wait_ms, waits_for_memory=False)
    content = await contents_of(answer)
    return Fetched(
        int(answer.headers["tailrace-log-start"]),
        int(answer.headers["tailrace-high-watermark"]),
        memoryview(content),
        is_sealed="tailrace-sealed" in answer.headers,
    )
