"""A broker by a context's name: its certificate is checked, and each request has the token."""

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.cli.commands import TAILRACE, TIMEOUT_S, assert_fails, environment, reported
from tests.support.http.tls import CA_FILE, TlsListener, tls_listener

pytestmark = pytest.mark.integration


@pytest.fixture
def surroundings(tmp_path: Path) -> Mapping[str, str]:
    """Without any context yet."""
    return environment() | {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture
def listener(shared_broker: RunningBroker) -> Iterator[TlsListener]:
    with tls_listener(shared_broker.port) as opened:
        yield opened


def run(
    surroundings: Mapping[str, str], *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """One command, to its end."""
    return subprocess.run(
        [TAILRACE, *arguments],
        input=stdin,
        capture_output=True,
        env=surroundings,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("group", [(), ("--group", "by-context")], ids=["stateless", "group"])
def test_a_context_has_all_that_a_verb_needs(
    shared_broker: RunningBroker,
    surroundings: Mapping[str, str],
    listener: TlsListener,
    tmp_path: Path,
    group: tuple[str, ...],
) -> None:
    context = ("prod", listener.url, "--ca-file", CA_FILE, "--token-file", "-")
    reported(run(surroundings, "context", "set", *context, stdin=b"secret\n"))
    with Client(shared_broker.url) as client:
        client.produce(tmp_path.name, b"1", key="k")
    command = [TAILRACE, "consume", tmp_path.name, "-f", *group]
    with subprocess.Popen(command, env=surroundings, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)

    requests = bytes(listener.requests).count(b" HTTP/1.1\r\n")
    assert json.loads(line)["value"] == 1
    assert requests >= 2
    assert bytes(listener.requests).count(b"Authorization: Bearer secret\r\n") == requests


def test_a_certificate_that_is_not_trusted_is_reported_with_the_remedy(
    surroundings: Mapping[str, str], listener: TlsListener
) -> None:
    reported(run(surroundings, "context", "set", "prod", listener.url))

    assert_fails(run(surroundings, "topic", "list"), 1, 'is not trusted .* context "prod"')
