"""Followers and leaders exchange messages and stored batches over real sockets."""

from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace_broker.model.replication import (
    Heartbeat,
    LogReport,
    LogStanding,
    Reported,
    Restart,
    Standing,
    ToFollower,
)
from tailrace_broker.model.ring_state import Replica
from tailrace_broker.net.replication.link import QUEUED_BYTES_MAX, WINDOW_BYTES
from tests.support.http.peers import SECRET, lines_of, open_mesh, turn
from tests.support.replication.links import (
    KEY,
    LinkedBroker,
    batches_at,
    linked_brokers,
)
from tests.support.waits import until

pytestmark = [pytest.mark.integration, pytest.mark.uvloop]

MEBIBYTE = 1024 * 1024
STANDING = Standing(1, 5, 2, Replica(2, 9), (LogStanding(KEY, 0, 10, ()),))
HEARTBEAT = Heartbeat(1, 5, 2, ())
# A follower's messages follow its credit on the link, so a leader that has one has the credit.


async def stood(leader: LinkedBroker, follower: LinkedBroker) -> None:
    follower.links.send_leader(leader.ordinal, STANDING)
    assert await leader.from_followers.get() == (follower.ordinal, STANDING)


async def test_messages_and_batches_pass_unchanged_both_ways_in_order() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await stood(leader, follower)
        payloads = [bytes([number]) * (number * 2_000) for number in range(1, 100)]
        for number, payload in enumerate(payloads):
            halves = payload[: len(payload) // 2], memoryview(payload)[len(payload) // 2 :]
            leader.links.send_follower(2, batches_at(number), halves)

        for number, payload in enumerate(payloads):
            received = await follower.from_leaders.get()
            assert received[:3] == (1, batches_at(number), payload)
            received.link.consumed(len(payload))
            report = Reported(1, 5, 2, Replica(2, 9), (LogReport(KEY, number, number),))
            follower.links.send_leader(1, report)
            assert await leader.from_followers.get() == (2, report)


async def test_two_brokers_follow_each_other_on_a_link_each() -> None:
    async with linked_brokers() as brokers:
        one, two = await brokers.linked_pair()
        one.links.follow([2])
        assert await one.changed.get() == 2
        await stood(one, two)
        one.links.send_leader(2, STANDING._replace(replica=Replica(1, 9)))
        ordinal, _ = await two.from_followers.get()
        assert ordinal == 1


async def test_no_more_batches_are_under_way_than_the_follower_takes() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await stood(leader, follower)
        payload = bytes(MEBIBYTE)
        count = QUEUED_BYTES_MAX // MEBIBYTE
        assert leader.links.has_room(2)
        for number in range(count):
            leader.links.send_follower(2, batches_at(number), [payload])
        await until(lambda: follower.from_leaders.qsize() == WINDOW_BYTES // MEBIBYTE)
        assert not leader.links.has_room(2)
        assert not leader.links.has_room(7)
        leader.links.send_follower(2, HEARTBEAT)  # passes what waits, so nothing else came before
        await until(lambda: follower.from_leaders.qsize() > WINDOW_BYTES // MEBIBYTE)

        messages: list[ToFollower] = []
        while len(messages) <= count:
            received = await follower.from_leaders.get()
            messages.append(received.message)
            if received.payload:
                assert follower.from_leaders.qsize() <= WINDOW_BYTES // MEBIBYTE
                received.link.consumed(len(received.payload))
        assert messages.index(HEARTBEAT) == WINDOW_BYTES // MEBIBYTE
        messages.remove(HEARTBEAT)
        assert messages == list(map(batches_at, range(count)))


async def test_a_batch_that_is_larger_than_the_window_is_sent_alone() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await stood(leader, follower)
        large = bytes(2 * WINDOW_BYTES)
        leader.links.send_follower(2, batches_at(0), [b"x"])
        leader.links.send_follower(2, batches_at(1), [large])
        leader.links.send_follower(2, batches_at(2), [b"y"])

        first = await follower.from_leaders.get()
        leader.links.send_follower(2, HEARTBEAT)
        assert (await follower.from_leaders.get()).message == HEARTBEAT
        first.link.consumed(1)
        second = await follower.from_leaders.get()
        assert second[1:3] == (batches_at(1), large)
        second.link.consumed(len(large))
        assert (await follower.from_leaders.get()).payload == b"y"


async def test_a_follower_that_takes_nothing_loses_its_link_and_dials_again() -> None:
    with capture_logs() as logs:
        async with linked_brokers() as brokers:
            leader, follower = await brokers.linked_pair()
            await stood(leader, follower)
            payload = bytes(MEBIBYTE)
            count = (WINDOW_BYTES + QUEUED_BYTES_MAX) // MEBIBYTE + 1
            for number in range(count):
                leader.links.send_follower(2, batches_at(number), [payload])
                await turn()
            assert [await follower.changed.get() for _ in range(2)] == [1, 1]
            await stood(leader, follower)
            while not follower.from_leaders.empty():
                follower.from_leaders.get_nowait().link.consumed(
                    MEBIBYTE
                )  # of the link that is gone
            leader.links.send_follower(2, batches_at(0), [b"x"])
            assert (await follower.from_leaders.get()).payload == b"x"
    (line,) = lines_of(logs, "replication.refused")
    assert (line["peer"], line["reason"]) == (2, "slow")


async def test_who_waits_is_called_when_the_follower_has_taken_what_was_sent_before() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await stood(leader, follower)
        called: list[str] = []
        for name in ("first", "second"):
            leader.links.send_follower(2, batches_at(0), [bytes(MEBIBYTE)])
            leader.links.call_when_taken(2, partial(called.append, name))
        received = [await follower.from_leaders.get() for _ in range(2)]
        assert follower.links.received_bytes == 2 * MEBIBYTE
        assert called == []
        received[0].link.consumed(MEBIBYTE)
        await until(lambda: called == ["first"])
        received[1].link.consumed(MEBIBYTE)
        await until(lambda: called == ["first", "second"])
        assert follower.links.received_bytes == 0

        leader.links.call_when_taken(2, partial(called.append, "nothing was sent"))
        leader.links.call_when_taken(7, partial(called.append, "no link"))
        await until(lambda: called[2:] == ["nothing was sent", "no link"])
        leader.links.send_follower(2, batches_at(0), [b"x"])
        leader.links.call_when_taken(2, partial(called.append, "lost"))
        follower.links.follow(())
        await until(lambda: called[4:] == ["lost"])


async def test_a_leader_that_starts_again_is_linked_again() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await leader.links.close()
        assert await follower.changed.get() == 1
        follower.links.send_leader(1, STANDING)  # lost
        assert follower.links.counters.dropped == 1

        again = await brokers.join(1, port=brokers.addresses[1][1])
        assert await follower.changed.get() == 1
        await stood(again, follower)


async def test_of_a_follower_that_dials_twice_the_last_link_counts() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await stood(leader, follower)
        twin = LinkedBroker(2, brokers.addresses, brokers._tasks.create_task, SECRET)
        twin.links.follow([1])
        assert await twin.changed.get() == 1
        await stood(leader, twin)
        leader.links.send_follower(2, HEARTBEAT)
        assert (await twin.from_leaders.get()).message == HEARTBEAT
        follower.links.follow(())
        await twin.links.close()


async def test_a_leader_that_is_followed_no_more_is_not_linked() -> None:
    async with linked_brokers() as brokers:
        leader, follower = await brokers.linked_pair()
        await stood(leader, follower)
        follower.links.follow(())
        await until(lambda: leader.links.counters.lost == 1)
        leader.links.send_follower(2, HEARTBEAT)
        assert leader.links.counters.dropped == 1
        assert follower.changed.empty()


async def test_who_does_not_know_the_secret_is_refused() -> None:
    with capture_logs() as logs:
        async with linked_brokers() as brokers:
            leader = await brokers.join(1)
            stranger = await brokers.join(2, secret=b"another")
            stranger.links.follow([1])
            await until(lambda: stranger.links.counters.handshakes_refused >= 1)
            await until(lambda: leader.links.counters.handshakes_refused >= 1)
            assert leader.from_followers.empty()
    assert {line["reason"] for line in lines_of(logs, "replication.refused")} == {
        "secret",
        "closed",
    }


async def test_a_connection_for_metadata_is_no_link() -> None:
    with capture_logs() as logs:
        async with open_mesh() as mesh:
            node = await mesh.join(1)
            follower = LinkedBroker(2, mesh.addresses, mesh.spawn, SECRET)
            follower.links.follow([1])
            await until(lambda: node.peers.counters.handshakes_refused == 1)
            await follower.links.close()
    reasons = {line["reason"] for line in lines_of(logs, "peer.refused")}
    assert reasons == {"magic"}


@pytest.mark.parametrize("is_leader", [True, False])
async def test_a_message_of_the_other_role_ends_the_link(is_leader: bool) -> None:
    with capture_logs() as logs:
        async with linked_brokers() as brokers:
            leader, follower = await brokers.linked_pair()
            await stood(leader, follower)
            wrong: Any = STANDING if is_leader else Restart(1, 5, 2)
            if is_leader:
                leader.links.send_follower(2, wrong)
            else:
                follower.links.send_leader(1, wrong)
            assert [await follower.changed.get() for _ in range(2)] == [1, 1]
    (line,) = lines_of(logs, "replication.refused")
    assert line["reason"] == "frame"
    assert line["detail"].endswith("'s message")


async def test_a_message_of_another_broker_ends_the_link() -> None:
    with capture_logs() as logs:
        async with linked_brokers() as brokers:
            leader, follower = await brokers.linked_pair()
            follower.links.send_leader(1, STANDING._replace(replica=Replica(3, 9)))
            assert [await follower.changed.get() for _ in range(2)] == [1, 1]
            assert leader.from_followers.empty()
    (line,) = lines_of(logs, "replication.refused")
    assert line["detail"] == "a message of broker 3 on the link of broker 2"
