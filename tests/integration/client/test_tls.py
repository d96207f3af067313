"""Both clients through TLS, with a token: what is trusted works, what is not says why."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tailrace import aio, sync
from tailrace.aio_producer import Producer as AioProducer
from tailrace.errors import (
    ConnectionFailedError,
    NotStoredError,
    UntrustedCertificateError,
    WrongSchemeError,
)
from tailrace.producer import Producer
from tests.support.broker.fixtures import RunningBroker
from tests.support.cli.commands import TAILRACE, TIMEOUT_S, assert_fails, environment, run
from tests.support.http.tls import CA_FILE, TlsListener, tls_listener

pytestmark = pytest.mark.integration


@pytest.fixture
def listener(shared_broker: RunningBroker) -> Iterator[TlsListener]:
    with tls_listener(shared_broker.port) as opened:
        yield opened


def ask_blocking(method: str, url: str, arguments: tuple[Any, ...], options: Any) -> Any:
    with sync.Client(url, **options) as client:
        return getattr(client, method)(*arguments)


def ask_awaited(method: str, url: str, arguments: tuple[Any, ...], options: Any) -> Any:
    async def ask() -> Any:
        async with aio.Client(url, **options) as client:
            asking: Callable[..., Awaitable[Any]] = getattr(client, method)
            return await asking(*arguments)

    return asyncio.run(ask())


clients = pytest.mark.parametrize("ask", [ask_blocking, ask_awaited], ids=["sync", "aio"])


@clients
def test_with_its_ca_a_broker_is_trusted_and_gets_the_token_as_it_is(
    listener: TlsListener, ask: Any, topic: str
) -> None:
    options = {"token": "s3cret.Token", "ca_file": CA_FILE}
    produced = ask("produce", listener.url, (topic, b'{"n":1}'), options)
    lines = ask("last_lines", listener.url, (topic,), options)

    assert produced.count == 1
    assert b'"value":{"n":1}' in lines
    tokens = [
        line.partition(b": ")[2]
        for line in bytes(listener.requests).split(b"\r\n")
        if line.lower().startswith(b"authorization:")
    ]
    assert tokens == [b"Bearer s3cret.Token"] * 2


@clients
def test_without_its_ca_nothing_is_sent_and_the_error_names_ca_file(
    listener: TlsListener, ask: Any
) -> None:
    with pytest.raises(ConnectionFailedError, match="ca_file") as caught:
        ask("produce", listener.url, ("t", b"1"), {"token": "s3cret"})

    assert isinstance(caught.value, UntrustedCertificateError)
    assert "certificate" in caught.value.reason
    assert not caught.value.write_attempted
    assert not listener.requests


@clients
def test_a_host_that_is_not_in_the_certificate_is_not_trusted(
    shared_broker: RunningBroker, ask: Any
) -> None:
    with (
        tls_listener(shared_broker.port, certificate="elsewhere.pem") as elsewhere,
        pytest.raises(UntrustedCertificateError, match=r"127\.0\.0\.1"),
    ):
        ask("topics", elsewhere.url, (), {"ca_file": CA_FILE})

    assert not elsewhere.requests


@clients
def test_https_to_a_port_of_plain_http_says_so_with_the_right_url(
    shared_broker: RunningBroker, ask: Any
) -> None:
    url = shared_broker.url.replace("http:", "https:")
    with pytest.raises(WrongSchemeError) as caught:
        ask("produce", url, ("t", b"1"), {"ca_file": CA_FILE})

    assert str(caught.value) == f"{url} speaks plain http, and no TLS: use {shared_broker.url}"
    assert not caught.value.write_attempted
    assert not caught.value.retriable


def test_the_command_line_says_which_scheme_a_port_speaks(
    shared_broker: RunningBroker, listener: TlsListener
) -> None:
    to_plain = run("topic", "list", url=shared_broker.url.replace("http:", "https:"))
    to_tls = run("topic", "list", url=listener.url.replace("https:", "http:"))

    assert_fails(to_plain, 1, f"speaks plain http, and no TLS: use {shared_broker.url}")
    assert_fails(to_tls, 1, f"speaks TLS, and no plain http: use {listener.url}")


def test_producers_trust_what_their_clients_do(listener: TlsListener, topic: str) -> None:
    with (
        sync.Client(listener.url, token="abc", ca_file=CA_FILE) as client,
        Producer(client) as producer,
    ):
        first = producer.send(topic, b"1", key="k")

    async def send() -> int | None:
        async with (
            aio.Client(listener.url, token="abc", ca_file=CA_FILE) as client,
            AioProducer(client) as producer,
        ):
            return (await (await producer.send(topic, b"2", key="k"))).offset

    assert first.result().offset == 0
    assert asyncio.run(send()) == 1


def test_a_producer_does_not_wait_for_trust(listener: TlsListener) -> None:
    with sync.Client(listener.url) as client:
        producer = Producer(client)
        sent = producer.send("t", b"1")
        with pytest.raises(NotStoredError, match="ca_file"):
            producer.close()

    assert isinstance(sent.exception(), UntrustedCertificateError)


def test_the_command_line_takes_both_from_its_environment(
    listener: TlsListener, topic: str
) -> None:
    secrets = {"TAILRACE_TOKEN": "from-the-environment", "TAILRACE_CA_FILE": CA_FILE}
    done = subprocess.run(
        [TAILRACE, "produce", topic],
        input=b'{"n":1}\n',
        env=environment(listener.url) | secrets,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert (done.returncode, done.stdout[:3]) == (0, "✓".encode())
    assert b"Authorization: Bearer from-the-environment\r\n" in listener.requests
