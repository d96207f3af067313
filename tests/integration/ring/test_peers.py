"""Brokers talk over real sockets."""

import asyncio
import gc
import socket
from contextlib import suppress
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tailrace_broker.codec.peer import FRAME_BYTES_MAX, encode_frame
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.errors import InvalidSettingError, PortInUseError
from tailrace_broker.model.messages import CommandForwarded
from tailrace_broker.net.peers.context import PeerContext
from tailrace_broker.net.peers.outgoing import REDIAL_SECONDS
from tests.support.http.peers import (
    HOST,
    assert_closed,
    dial,
    free_port,
    lines_of,
    message_of,
    open_mesh,
)
from tests.support.waits import until

pytestmark = [pytest.mark.integration, pytest.mark.uvloop]


# --- messages ---


async def test_brokers_exchange_messages_in_order_and_each_once() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        for number in range(100):
            one.peers.send(2, one.message(number))
            two.peers.send(1, two.message(number))

        for number in range(100):
            assert await two.messages.get() == one.message(number)
            assert await one.messages.get() == two.message(number)
        for node in (one, two):
            counters = node.peers.counters
            assert (counters.frames_sent, counters.frames_received) == (100, 100)
            assert (counters.connected, counters.dropped, counters.lost) == (2, 0, 0)
            assert counters.bytes_sent == 100 * len(encode_frame(one.message(0)))


async def test_a_large_message_arrives_whole() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        large = CommandForwarded(DiskId(1, UUID(int=2)), bytes(range(256)) * 4000)
        one.peers.send(2, large)
        one.peers.send(2, one.message(1))

        assert await two.messages.get() == large
        assert await two.messages.get() == one.message(1)


async def test_a_message_too_large_for_a_frame_is_dropped_and_reported() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        with capture_logs() as logs:
            one.peers.send(2, CommandForwarded(DiskId(1, UUID(int=2)), bytes(FRAME_BYTES_MAX)))
            await one.reach(two, 1)

        (line,) = lines_of(logs, "message.dropped")
        assert f"at most {FRAME_BYTES_MAX}" in line["detail"]
        assert one.peers.counters.dropped == 1


async def test_a_message_to_itself_goes_nowhere() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        one.peers.send(1, one.message(1))

        assert one.peers.counters.dropped == 1


async def test_brokers_without_a_ring_talk_to_those_that_have_one() -> None:
    async with open_mesh() as mesh:
        one, blank = await mesh.join(1), await mesh.join(2, cluster=None)
        await one.reach(blank)
        await blank.reach(one)


async def test_without_a_secret_none_is_asked_for() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1, secret=b""), await mesh.join(2, secret=b"")
        await one.reach(two)


# --- who comes and goes ---


async def test_a_broker_that_ends_is_noticed_by_who_sends_to_it_and_who_hears_it() -> None:
    async with open_mesh() as mesh:
        sender, hearer, ending = [await mesh.join(ordinal) for ordinal in (1, 2, 3)]
        await sender.reach(ending)
        await ending.reach(hearer)
        await ending.peers.close()

        assert await sender.unreachable.get() == 3
        assert await hearer.unreachable.get() == 3
        assert sender.peers.counters.lost == 1
        assert hearer.peers.counters.lost == 1


async def test_a_broker_whose_connection_is_reset_and_that_takes_no_other_is_noticed() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        mesh.addresses[2] = (HOST, free_port())
        _, writer = await dial(one, mesh, ordinal=2)
        writer.write(encode_frame(message_of(2, 5)))
        assert await one.messages.get() == message_of(2, 5)
        writer.transport.abort()

        assert await one.unreachable.get() == 2


async def test_a_broker_whose_connection_is_reset_and_that_takes_another_is_there() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        await one.reach(two)
        for transport in list(two.peers._context.open):
            transport.abort()

        await until(lambda: one.peers.counters.connected == 2)
        await two.reach(one)  # whose end of it is noticed by who hears it, too
        for transport in list(two.peers._context.open):
            transport.abort()
        await until(lambda: one.peers.counters.connected + two.peers.counters.connected >= 8)
        await one.reach(two, 3)
        assert one.unreachable.empty()
        assert two.unreachable.empty()


async def test_a_broker_that_does_not_answer_a_redial_is_noticed() -> None:
    """Its process is suspended: the kernel takes the connection."""

    async with open_mesh() as mesh:
        one = await mesh.join(1)
        with socket.create_server((HOST, 0)) as mute:
            mesh.addresses[2] = mute.getsockname()
            _, writer = await dial(one, mesh, ordinal=2)
            writer.write(encode_frame(message_of(2, 5)))
            await one.messages.get()
            began_s = asyncio.get_running_loop().time()
            writer.transport.abort()

            assert await one.unreachable.get() == 2
            passed_s = asyncio.get_running_loop().time() - began_s
            assert passed_s > REDIAL_SECONDS - 0.01  # uvloop's clock has whole milliseconds


async def test_a_broker_that_is_not_there_is_noticed_and_dialled_again() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        mesh.addresses[2] = (HOST, free_port())
        with capture_logs() as logs:
            one.peers.send(2, one.message(1))
            assert await one.unreachable.get() == 2
            one.peers.send(2, one.message(2))
            assert one.peers.counters.dropped == 2

            two = await mesh.join(2, port=mesh.addresses[2][1])
            await one.reach(two, 3)

        assert len(lines_of(logs, "peer.unreachable")) == 1


async def test_of_several_addresses_that_all_refuse_the_broker_is_noticed_too() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        mesh.addresses[2] = ("localhost", free_port())
        one.peers.send(2, one.message(1))

        assert await one.unreachable.get() == 2


async def test_a_name_that_nobody_has_is_reported_and_is_no_refusal() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        mesh.addresses[2] = ("no such host", 9255)
        with capture_logs() as logs:
            one.peers.send(2, one.message(1))
            await until(lambda: one.peers.counters.dropped == 1)

        (line,) = lines_of(logs, "peer.unreachable")
        assert line["host"] == "no such host"
        assert one.unreachable.empty()


async def test_a_broker_that_started_again_is_dialled_again() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        await one.reach(two)
        await two.peers.close()
        assert await one.unreachable.get() == 2
        again = await mesh.join(2, port=mesh.addresses[2][1])

        await one.reach(again, 2)


async def test_who_is_heard_from_is_dialled_at_once() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        mesh.addresses[2] = (HOST, free_port())
        while (refused := one.peers.counters.dropped) < 6:  # the next one waits for a second
            one.peers.send(2, one.message(1))
            await one.dropped_more_than(refused)
        two = await mesh.join(2, port=mesh.addresses[2][1])
        await two.reach(one)

        one.peers.send(2, one.message(2))
        assert await two.messages.get() == one.message(2)


async def test_of_a_broker_that_dials_twice_the_last_connection_counts() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        mesh.addresses[2] = (HOST, free_port())
        first, previous = await dial(one, mesh, ordinal=2)
        _, second = await dial(one, mesh, ordinal=2)
        second.write(encode_frame(message_of(2, 1)))

        assert await one.messages.get() == message_of(2, 1)
        await assert_closed(first)
        previous.close()
        assert one.unreachable.empty()
        second.close()
        assert await one.unreachable.get() == 2


async def test_what_a_closed_transport_is_asked_to_send_is_dropped() -> None:
    async with open_mesh() as mesh:
        one, two = await mesh.join(1), await mesh.join(2)
        await one.reach(two)
        one.peers.send(2, one.message(1))  # on its way at the end
        await one.peers.close()
        one.peers.send(2, one.message(2))

        assert await two.messages.get() == one.message(1)
        assert one.peers.counters.dropped == 1
        assert one.unreachable.empty()


async def test_closing_ends_a_dial_that_is_under_way() -> None:
    async with open_mesh() as mesh:
        one = await mesh.join(1)
        with socket.socket() as full:  # nobody accepts, the queue is full: a dial does not end
            full.bind((HOST, 0))
            full.listen(0)
            mesh.addresses[2] = full.getsockname()
            waiting = [socket.socket() for _ in range(2)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            one.peers.send(2, one.message(1))
            await asyncio.sleep(0)
            await one.peers.close()
            for each in waiting:
                each.close()

        assert one.unreachable.empty()


async def test_a_lookup_that_is_given_up_fails_without_a_word_to_the_loop() -> None:
    """The loop would take its error for a bug, which ends a broker."""

    async with open_mesh() as mesh:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        one = await mesh.join(1)
        mesh.addresses[2] = ("no-such-host.invalid", 9255)
        one.peers.send(2, one.message(1))
        await asyncio.sleep(0)
        await one.peers.close()
        with suppress(socket.gaierror):  # as long as the lookup that was given up, or longer
            await loop.getaddrinfo(*mesh.addresses[2])
        gc.collect()  # what nobody asked for is reported then

        assert reported == []


# --- where it listens ---


async def test_a_port_in_use_is_named() -> None:
    async with open_mesh() as mesh:
        await mesh.join(1)
        port = mesh.addresses[1][1]
        with pytest.raises(PortInUseError, match=f"port {port} on {HOST}, for other brokers"):
            await mesh.join(2, port=port)


async def test_a_host_that_is_not_here_is_named() -> None:
    async with open_mesh() as mesh:
        node = await mesh.join(1)
        with pytest.raises(InvalidSettingError, match=r"TAILRACE_HOST: cannot listen on 192\.0\.2"):
            await node.peers.listen("192.0.2.1", 0)


async def test_lines_of_very_many_peers_take_no_more_memory() -> None:
    context = PeerContext(0, b"", lambda: None, asyncio.get_running_loop())

    assert all(context.may_log(number, "x") for number in range(2000))
    assert not context.may_log(1999, "x")
    assert context.may_log(1999, "y")
