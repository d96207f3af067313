"""Brokers among others: what is too much, or of no broker of the ring, is not taken."""

import asyncio
import socket
from contextlib import suppress
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tailrace_broker.codec.peer import FRAME_BYTES_MAX, FRAME_HEADER, encode_frame
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.messages import CommandForwarded
from tailrace_broker.net.peers.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    Handshake,
    PeerIdentity,
    Side,
)
from tailrace_broker.net.peers.incoming import STRANGERS_MAX
from tailrace_broker.net.peers.outgoing import QUEUED_BYTES_MAX, QUEUED_FRAMES_MAX
from tests.support.http.peers import (
    CLUSTER,
    HOST,
    SECRET,
    Log,
    Node,
    assert_closed,
    dial,
    lines_of,
    message_of,
    open_mesh,
    turn,
)
from tests.support.waits import until

pytestmark = [pytest.mark.integration, pytest.mark.uvloop]


# --- too much ---


async def test_of_what_waits_for_a_slow_broker_the_newest_is_kept() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        for number in range(QUEUED_FRAMES_MAX + 50):
            one.peers.send(2, one.message(number))

        assert await two.messages.get() == one.message(50)
        assert one.peers.counters.dropped == 50


async def test_what_waits_for_a_slow_broker_is_bounded_in_bytes() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        contents = bytes(QUEUED_BYTES_MAX // 4)
        large = [CommandForwarded(DiskId(1, UUID(int=n)), contents) for n in range(5)]
        for each in large:
            one.peers.send(2, each)

        assert await two.messages.get() == large[2]
        assert one.peers.counters.dropped == 2


async def test_a_broker_that_takes_nothing_is_written_to_again_when_it_does() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        taken, ended = asyncio.Event(), asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handshake = Handshake(
                Side.ACCEPTOR,
                PeerIdentity(2, CLUSTER),
                secret=SECRET,
                nonce=bytes(NONCE_BYTES),
            )
            writer.write(handshake.feed(await reader.readexactly(GREETING.size)))
            await taken.wait()
            while await reader.read(1024 * 1024):
                pass
            writer.close()
            ended.set()

        server = await asyncio.start_server(accept, HOST, 0)
        mesh.addresses[2] = server.sockets[0].getsockname()
        sender, contents = DiskId(1, UUID(int=2)), bytes(1024 * 1024)
        counters = one.peers.counters
        one.peers.send(2, CommandForwarded(sender, contents))
        await until(lambda: counters.frames_sent == 1)
        while counters.dropped == 0:  # until all that may wait is waiting
            one.peers.send(2, CommandForwarded(sender, contents))
            await turn()
        sent = counters.frames_sent
        taken.set()
        await until(lambda: counters.frames_sent > sent)
        await one.peers.close()
        await ended.wait()
        server.close()


async def test_a_frame_over_the_limit_closes_the_connection_with_one_line() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        with capture_logs() as logs:
            for _ in range(2):
                reader, writer = await dial(one, mesh, ordinal=2)
                writer.write(FRAME_HEADER.pack(FRAME_BYTES_MAX, 0))
                await assert_closed(reader)
                writer.close()

        (line,) = lines_of(logs, "frame.refused")
        assert line["peer"] == 2
        assert one.peers.counters.bad_frames == 2
        assert one.unreachable.empty()


async def test_messages_before_a_bad_frame_count_and_none_behind() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        reader, writer = await dial(one, mesh, ordinal=2)
        frames = [encode_frame(message_of(2, number)) for number in range(3)]
        frames[1] = frames[1][:-1] + bytes([frames[1][-1] ^ 1])
        writer.write(b"".join(frames))
        await assert_closed(reader)
        writer.close()

        assert await one.messages.get() == message_of(2, 0)
        assert one.messages.empty()


async def test_a_broker_speaks_for_itself_only() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        with capture_logs() as logs:
            reader, writer = await dial(one, mesh, ordinal=2)
            writer.write(encode_frame(message_of(3, 1)))
            await assert_closed(reader)
            writer.close()

        (line,) = lines_of(logs, "frame.refused")
        assert line["detail"] == "a message of broker 3 on the connection of broker 2"
        assert one.messages.empty()


async def test_so_many_strangers_are_heard_at_a_time_and_a_broker_when_one_has_gone() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        with capture_logs() as logs:
            strangers = [
                await asyncio.open_connection(*mesh.addresses[1]) for _ in range(STRANGERS_MAX)
            ]
            late, writer = await asyncio.open_connection(*mesh.addresses[1])
            await assert_closed(late)
            for _, each in [*strangers, (late, writer)]:
                each.close()
        await two.reach(one)

        (line,) = lines_of(logs, "peer.refused")
        assert line["reason"] == "crowded"


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_mesh() as mesh:
        await mesh.join(1)
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection(*mesh.addresses[1])
            await assert_closed(reader)
            writer.close()

        (line,) = lines_of(logs, "peer.refused")
        assert line["reason"] == "timeout"

    monkeypatch.setattr("tailrace_broker.net.peers.incoming.HANDSHAKE_SECONDS", 0.01)


async def test_whose_handshake_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        with socket.create_server((HOST, 0)) as silent:
            mesh.addresses[2] = silent.getsockname()
            with capture_logs() as logs:
                one.peers.send(2, one.message(1))
                await until(lambda: one.peers.counters.dropped == 1)

        (line,) = lines_of(logs, "peer.refused")
        assert (line["peer"], line["reason"]) == (2, "timeout")
        assert one.unreachable.empty()

    monkeypatch.setattr("tailrace_broker.net.peers.outgoing.HANDSHAKE_SECONDS", 0.01)


# --- who does not belong ---


async def refused(one: Node, two: Node, count: int = 1) -> list[Log]:
    """What is notified of a message of one to two that does not get there."""
    with capture_logs() as logs:
        one.peers.send(two.ordinal, one.message(1))
        await until(lambda: one.peers.counters.dropped == 1)
        refusals = one.peers.counters, two.peers.counters
        await until(lambda: sum(refusal.handshakes_refused for refusal in refusals) >= count)
    assert two.messages.empty()
    assert one.unreachable.empty()
    return lines_of(logs, "peer.refused")


async def test_a_broker_with_another_secret_is_refused() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2, secret=b"of another ring")
        dialler, acceptor = await refused(one, two, count=2)

        assert (dialler["peer"], dialler["reason"]) == (2, "secret")
        assert "TAILRACE_RING_SECRET" in dialler["detail"]
        assert (acceptor["address"], acceptor["reason"]) == (HOST, "closed")


@pytest.mark.parametrize("secret", [b"", b"guessed"])
async def test_who_guesses_the_secret_is_refused(secret: bytes) -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        reader, writer = await asyncio.open_connection(*mesh.addresses[1])
        guessing = Handshake(
            Side.DIALLER, PeerIdentity(2, None), secret=secret, nonce=bytes(NONCE_BYTES), wanted=1
        )
        with capture_logs() as logs:
            writer.write(guessing.first_words())
            await reader.readexactly(GREETING.size + PROOF_BYTES)
            writer.write(bytes(PROOF_BYTES) + encode_frame(message_of(2, 1)))
            await assert_closed(reader)
            writer.close()

        (line,) = lines_of(logs, "peer.refused")
        assert (line["reason"], line["direction"]) == ("secret", "incoming")
        assert one.messages.empty()


async def test_a_broker_that_answers_frames_is_refused() -> None:
    async with open_mesh() as mesh:

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handshake = Handshake(
                Side.ACCEPTOR, PeerIdentity(2, CLUSTER), secret=SECRET, nonce=bytes(NONCE_BYTES)
            )
            writer.write(handshake.feed(await reader.readexactly(GREETING.size)))
            await reader.readexactly(PROOF_BYTES)
            writer.write(b"thank you")
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            ended.set()

        ended = asyncio.Event()
        one = await mesh.join(1)
        server = await asyncio.start_server(accept, HOST, 0)
        mesh.addresses[2] = server.sockets[0].getsockname()
        with capture_logs() as logs:
            one.peers.send(2, one.message(1))
            assert await one.unreachable.get() == 2
            await ended.wait()
        server.close()

        (line,) = lines_of(logs, "peer.refused")
        assert line["reason"] == "protocol"


async def test_who_only_looks_whether_the_port_is_open_is_not_worth_a_line() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        with capture_logs() as logs:
            _, writer = await asyncio.open_connection(*mesh.addresses[1])
            writer.close()
            await writer.wait_closed()
            await two.reach(one)

        assert lines_of(logs, "peer.refused") == []
