"""What other brokers are answered that copy a sealed log."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.codec.copied import chained
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NoLeaderError,
    NotReadyError,
    PathNotFoundError,
    ReadFailedError,
)
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.replication import LogKey
from tailrace_broker.net.api import copies
from tailrace_broker.net.api.routes import ROUTES, forwarded_matcher
from tailrace_broker.net.broker import LeaderAnswer
from tailrace_broker.net.http.router import Call
from tailrace_broker.topics.copy_source import RemoteCopy
from tailrace_broker.topics.log_copy import Compared, DamagedPart, SourceEnds
from tests.support.storage.followers import stored_batch

KEY = LogKey(UUID(int=7), 3)
BATCHES = [stored_batch([b"%d" % each], each) for each in range(10, 16)]


class FixedLog:
    """Gives two batches at a time."""

    log_start, log_end = 10, 16

    async def read_written(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        assert 1 <= max_bytes <= copies.READ_BYTES
        return [each for each in BATCHES if each.header.end_offset > offset][:2]


class FixedMemory:
    async def run(self, read: Callable[[], Awaitable[Any]]) -> Any:
        return await read()


def sealed_log(topic_id: UUID, partition: int) -> FixedLog:
    if (topic_id, partition) != KEY:
        raise NoLeaderError("this broker has no whole copy of the partition")
    return FixedLog()


BROKER: Any = SimpleNamespace(catch_up_memory=FixedMemory(), sealed_log=sealed_log)


async def ask(ordinal: int, request: ForwardedCall, *, body: bytes | None = None) -> LeaderAnswer:
    """As the broker at the other end of a link does it."""
    assert ordinal == 1
    matched = forwarded_matcher()(b"GET", request.target)
    handle = matched.route.handle
    assert handle is not None
    response = await handle(BROKER, Call(matched.parameters, "", request.accept, b""))
    assert isinstance(response.body, Sequence)
    return LeaderAnswer(response.body if body is None else [body], "", 200, {})


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_a_copy_is_read_over_a_link_as_it_is_stored() -> None:
    source = RemoteCopy(ask, 1, KEY)

    assert run(source.ends()) == SourceEnds(10, 16)
    read = run(source.read(12))
    assert [each.header for each in read] == [each.header for each in BATCHES[2:4]]
    assert verified_batches(read[0].contents())


def test_a_part_of_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    source = RemoteCopy(ask, 1, KEY)
    headers = [each.header for each in BATCHES]

    assert run(source.compare(10, 13)) == Compared(chained(headers[:3]), 13)
    assert run(source.compare(10, 99)) == Compared(chained(headers), 16)
    monkeypatch.setattr(copies, "COMPARED_BYTES_MAX", 1)
    assert run(source.compare(10, 99)) == Compared(chained(headers[:2]), 12)


def test_who_has_no_whole_copy_says_so() -> None:
    with pytest.raises(NoLeaderError):
        run(RemoteCopy(ask, 1, LogKey(UUID(int=8), 3)).ends())


def test_a_topic_is_named_by_its_id() -> None:
    parameters = copies.CopyParameters(topic_id="orders", partition=0)
    with pytest.raises(PathNotFoundError):
        run(copies.describe_copy(BROKER, Call(parameters, "", "", b"")))


@pytest.mark.parametrize("body", [b"", b"no batch"])
def test_what_is_no_batch_is_asked_for_again(body: bytes) -> None:
    with pytest.raises(NotReadyError):
        run(RemoteCopy(partial(ask, body=body), 1, KEY).read(12))


class HoledLog(FixedLog):
    """Offsets 12 and 13 are lost."""

    is_accepted = True

    async def read_written(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        if offset in (12, 13):
            accepted = self.is_accepted
            raise CorruptPartitionError("lost", firstOffset=12, nextOffset=14, accepted=accepted)
        return await super().read_written(offset, max_bytes)


def test_what_is_given_up_is_named_and_what_is_damaged_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = HoledLog()
    monkeypatch.setattr(BROKER, "sealed_log", lambda *_: log)
    source = RemoteCopy(ask, 1, KEY)
    headers = [each.header for each in BATCHES]

    assert run(source.compare(10, 16)) == Compared(chained(headers[:2]), 12)
    assert run(source.compare(12, 16)) == Compared(0, 14, is_lost=True)
    assert run(source.compare(14, 16)) == Compared(chained(headers[4:]), 16)
    assert run(source.read(12)) == range(12, 14)
    log.is_accepted = False
    assert run(source.read(12)) == DamagedPart(14, "broker 1: lost")
    assert run(source.compare(12, 16)) == Compared(0, 14, is_damaged=True)


def test_a_source_that_cannot_read_its_disk_is_one_to_pass_over() -> None:
    async def failing(_: int, __: ForwardedCall) -> LeaderAnswer:
        raise ReadFailedError("the disk does not answer")

    with pytest.raises(NotReadyError, match="broker 1 cannot read its copy: the disk"):
        run(RemoteCopy(failing, 1, KEY).ends())


def test_no_listener_has_these_routes() -> None:
    assert not any(route.path.startswith("/internal") for route in ROUTES)
    assert all(not route.listeners for route in copies.COPY_ROUTES)
