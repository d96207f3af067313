"""Which web pages may send a request, as the head of the request and the settings say."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace_broker.app.settings import Settings
from tailrace_broker.model.errors import ForeignHostError, ForeignOriginError
from tailrace_broker.net.http.origin import WebAccess
from tailrace_broker.net.http.request import HEADERS, Exchange

OWN = b"127.0.0.1:9250"


def exchange_of(host: bytes | None = OWN, **headers: bytes) -> Exchange:
    exchange = Exchange()
    given = {"host": host, **headers}
    for name, value in given.items():
        if value is not None:
            HEADERS[name.replace("_", "-").encode()](exchange, value)
    return exchange


def access(**settings: Any) -> WebAccess:
    return Settings(data_dir=Path("data"), **settings).web_access


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"PATCH", b"DELETE", b"QUERY"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": b"http://evil.example"},
        {"origin": b"http://127.0.0.1:9251"},
        {"origin": b"http://localhost:9250"},
        {"origin": b"http://127.0.0.1"},
        {"origin": b"ftp://127.0.0.1:9250"},
        {"origin": b"127.0.0.1:9250"},
        {"origin": b"null"},
        {"sec_fetch_site": b"cross-site"},
        {"sec_fetch_site": b"same-site"},
        {"sec_fetch_site": b"something new"},
        {"origin": b"http://127.0.0.1:9250", "sec_fetch_site": b"cross-site"},
        {"origin": b"http://evil.example", "sec_fetch_site": b"same-origin"},
    ],
)
def test_a_page_of_another_origin_changes_nothing(method: bytes, headers: dict[str, bytes]) -> None:
    with pytest.raises(ForeignOriginError, match="TAILRACE_ALLOWED_ORIGINS"):
        access().check(exchange_of(**headers), method)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_a_page_of_another_origin_may_ask_but_not_read(method: bytes) -> None:
    """The browser hides the answer from it: nothing in the answer allows the page to read it."""
    exchange = exchange_of(origin=b"http://evil.example", sec_fetch_site=b"cross-site")
    access().check(exchange, method)

    assert exchange.allowed_origin == b""


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": b"http://127.0.0.1:9250"},
        {"origin": b"HTTP://127.0.0.1:9250"},
        {"origin": b"https://127.0.0.1:9250"},
        {"sec_fetch_site": b"same-origin"},
        {"sec_fetch_site": b"none"},
        {"origin": b"http://127.0.0.1:9250", "sec_fetch_site": b"same-origin"},
    ],
)
def test_the_broker_s_own_pages_and_other_clients_are_served(headers: dict[str, bytes]) -> None:
    exchange = exchange_of(**headers)
    access().check(exchange, b"POST")

    assert exchange.allowed_origin == b""


@pytest.mark.parametrize("headers", [[b"http://127.0.0.1:9250"] * 2, [b"null", b""]])
def test_two_origins_are_those_of_no_page(headers: list[bytes]) -> None:
    exchange = exchange_of()
    for header in headers:
        HEADERS[b"origin"](exchange, header)
        HEADERS[b"sec-fetch-site"](exchange, b"same-origin")

    assert exchange.fetch_site == b"same-origin, same-origin"
    with pytest.raises(ForeignOriginError):
        access().check(exchange, b"POST")


@pytest.mark.parametrize(
    ("allowed", "origin"),
    [
        ("https://console.example", b"https://console.example"),
        ("HTTPS://Console.example/, http://localhost:3000", b"http://localhost:3000"),
        ("HTTPS://Console.example/, http://localhost:3000", b"https://console.example"),
        ("chrome-extension://abc", b"chrome-extension://abc"),
        ("*", b"http://evil.example"),
        ("*", b"null"),
    ],
)
def test_a_page_of_an_allowed_origin_is_served(allowed: str, origin: bytes) -> None:
    exchange = exchange_of(origin=origin, sec_fetch_site=b"cross-site")
    access(allowed_origins=allowed).check(exchange, b"POST")

    assert exchange.allowed_origin == origin


def test_every_page_is_served_if_all_are_allowed() -> None:
    exchange = exchange_of(sec_fetch_site=b"cross-site")
    access(allowed_origins="*").check(exchange, b"POST")

    assert exchange.allowed_origin == b""
    with pytest.raises(ForeignOriginError, match=r"another origin \(Sec-Fetch-Site: cross-site\)"):
        access(allowed_origins="http://a.example").check(exchange, b"POST")


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, b"127.0.0.1"),
        ({}, b"127.0.0.1:1"),
        ({}, b"127.8.9.10:9250"),
        ({}, b"LocalHost:9250"),
        ({}, b"localhost."),
        ({}, b"my.localhost:9250"),
        ({}, b"[::1]:9250"),
        ({}, b"[::1]"),
        ({}, None),
        ({}, b""),
        ({"host": "::1"}, b"[::1]:9250"),
        ({"host": "localhost"}, b"127.0.0.1:9250"),
        ({"advertised_host": "events.example"}, b"Events.example:9250"),
        ({"peer_host": "e-{ordinal}.e", "ordinal": 1}, b"e-1.e:9250"),
        ({"allowed_hosts": "a.example, B.example"}, b"b.example:9250"),
        ({"allowed_hosts": "a.example:8443"}, b"a.example"),
        ({"allowed_hosts": "fd00::1"}, b"[fd00::1]:9250"),
        ({"allowed_hosts": "*"}, b"evil.example"),
        ({"host": "0.0.0.0"}, b"evil.example"),
        ({"host": "::"}, b"evil.example"),
        ({"host": "192.0.2.1"}, b"evil.example"),
    ],
)
def test_a_host_that_the_broker_knows_is_served(
    settings: dict[str, Any], host: bytes | None
) -> None:
    exchange = exchange_of(host)
    access(**settings).check(exchange, b"GET")

    assert exchange.hosts == (host is not None)


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, b"evil.example"),
        ({}, b"evil.example:9250"),
        ({}, b"0.0.0.0:9250"),
        ({}, b"192.0.2.1:9250"),
        ({}, b"[fe80::1]:9250"),
        ({}, b"localhost.evil.example"),
        ({}, b"evillocalhost"),
        ({}, b"127.0.0.1.evil.example"),
        ({}, b"\xff"),
        ({"host": "localhost"}, b"evil.example"),
        ({"host": "::1"}, b"evil.example"),
        ({"host": "127.0.0.9"}, b"evil.example"),
        ({"allowed_hosts": "a.example"}, b"b.a.example"),
        ({"allowed_origins": "*"}, b"evil.example"),
    ],
)
def test_a_loopback_broker_refuses_hosts_that_it_does_not_know(
    settings: dict[str, Any], host: bytes
) -> None:
    """A name whose owner has pointed it to 127.0.0.1."""
    for method in (b"GET", b"HEAD", b"OPTIONS", b"POST"):
        exchange = exchange_of(host, origin=b"http://" + host)

        with pytest.raises(ForeignHostError, match="TAILRACE_ALLOWED_HOSTS"):
            access(**settings).check(exchange, method)
        assert exchange.allowed_origin == b""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"allowed_origins": "console.example"},
            'lists "console.example"; write an origin, scheme://host:port',
        ),
        ({"allowed_origins": "http://a.example, null"}, 'lists "null"; write an origin'),
        (
            {"allowed_origins": "http://a.example/page"},
            'lists "http://a.example/page"; write an origin',
        ),
        ({"allowed_origins": "http://"}, "; write an origin"),
        ({"allowed_hosts": "http://a.example"}, 'lists "http://a.example"; write a host name'),
    ],
)
def test_what_is_no_origin_or_host_is_refused_at_the_start(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        access(**given)
