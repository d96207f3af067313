"""What a client is given is checked before anything is sent, and says what is wrong with it."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConnectionFailedError, UntrustedCertificateError
from tailrace.protocol.endpoint import (
    OptionError,
    authorization,
    connection_failed,
    parse_endpoint,
    tls_context,
)

URL = "https://events.example:9250"


@pytest.mark.parametrize(
    ("url", "is_tls", "host", "port"),
    [
        ("http://127.0.0.1:9250", False, "127.0.0.1", 9250),
        ("http://[::1]:9250/", False, "::1", 9250),
        ("http://events", False, "events", 80),
        ("https://events/", True, "events", 443),
    ],
)
def test_a_url_has_a_host_and_a_port(url: str, is_tls: bool, host: str, port: int) -> None:
    endpoint = parse_endpoint(url)

    assert (endpoint.is_tls, endpoint.host, endpoint.port) == (is_tls, host, port)
    assert endpoint.url == url.rstrip("/")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "events.example/"])
def test_a_host_alone_has_a_brokers_port(host: str) -> None:
    assert parse_endpoint(host) == parse_endpoint(f"http://{host.rstrip('/')}:9250")


@pytest.mark.parametrize("address", ["localhost:9250", "127.0.0.1:9250", "[::1]:9250/"])
def test_a_host_with_a_port_is_spoken_to_by_http(address: str) -> None:
    assert parse_endpoint(address) == parse_endpoint(f"http://{address}")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "events example",
        "events:x",
        "me@events:9250",
        "[::1",
        "ftp://a",
        "http://a/p",
        "http://me@a",
        "http://a:x",
    ],
)
def test_what_is_no_url_of_a_broker_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="not a broker's URL") as caught:
        parse_endpoint(url)

    assert caught.value.option == "url"


def test_a_token_is_a_bearer_token() -> None:
    assert authorization("s3cret.Token") == {"Authorization": "Bearer s3cret.Token"}
    assert authorization(None) == {}


@pytest.mark.parametrize("token", ["", "two words", "line\r\nHost: x", "é"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(OptionError, match="visible ASCII") as caught:
        authorization(token)

    assert caught.value.option == "token"
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize("token", [5, b"s3cret"])
def test_a_token_that_is_no_text_is_refused(token: Any) -> None:
    with pytest.raises(OptionError, match=f"the token is {type(token).__name__}; give it as text"):
        authorization(token)


def test_a_ca_file_that_cannot_be_used_is_refused_with_its_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate\n")
    for path in (empty, tmp_path / "nosuch.pem"):
        with pytest.raises(OptionError, match=path.name) as caught:
            tls_context(parse_endpoint(URL), str(path))

        assert caught.value.option == "ca_file"


def test_without_https_there_is_no_tls() -> None:
    assert tls_context(parse_endpoint("http://a"), "nosuch.pem") is None


def test_a_certificate_that_is_not_trusted_names_ca_file_and_is_not_tried_again() -> None:
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
    refused.verify_message = "self-signed certificate"
    wrapped = OSError("connector")
    wrapped.__cause__ = refused

    error = connection_failed(URL, wrapped, write_attempted=True)

    assert isinstance(error, UntrustedCertificateError)
    assert "self-signed certificate" in str(error)
    assert "ca_file" in str(error)
    assert not error.retriable
    assert not error.write_attempted


def test_a_url_without_a_port_names_the_one_that_was_tried() -> None:
    error = connection_failed("http://a", ConnectionRefusedError(111, "no"), write_attempted=False)

    assert str(error).startswith("no broker answers at http://a (port 80: no). Start one:")


def test_other_failures_say_their_reason() -> None:
    refused = connection_failed(URL, ConnectionRefusedError(111, "refused"), write_attempted=False)
    slow = connection_failed(URL, TimeoutError(), write_attempted=True)

    assert type(refused) is type(slow) is ConnectionFailedError
    assert (refused.reason, slow.reason) == ("refused", "timed out")
    assert (refused.write_attempted, slow.write_attempted) == (False, True)
