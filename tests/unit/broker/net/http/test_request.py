"""One request's head and body, piece by piece."""

import pytest

from tailrace_broker.model.errors import InvalidRequestError
from tailrace_broker.net.http.request import (
    HEADERS,
    Exchange,
    check_head,
    media_type,
    media_type_list,
)


def exchange_of(*headers: tuple[bytes, bytes], target: bytes = b"/") -> Exchange:
    exchange = Exchange()
    exchange.target = target
    for name, value in headers:
        HEADERS[name.lower()](exchange, value)
    return exchange


@pytest.mark.parametrize("pieces", [[b"abc"], [b"a", b"b", b"c"], [b"ab", b"", b"c"]])
def test_the_pieces_of_a_body_become_one(pieces: list[bytes]) -> None:
    exchange = Exchange()
    for piece in pieces:
        exchange.add_to_body(piece)

    assert exchange.body == b"abc"


def test_many_small_pieces_take_no_more_memory_than_their_bytes() -> None:
    """A chunk may be of one byte: as an object each, 16 MiB of them would be a gigabyte."""
    exchange = Exchange()
    for _ in range(1_000):
        exchange.add_to_body(b"ab")

    assert isinstance(exchange.body, bytearray)
    assert len(exchange.body) == 2_000


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"", ""),
        (b"application/json", "application/json"),
        (b"Application/JSON; charset=utf-8", "application/json"),
        (b"application/x-ndjson ;x", "application/x-ndjson"),
        (b"text/\xff", "text/\xff"),
        (b";", ""),
    ],
)
def test_a_content_type_is_read_without_its_parameters(value: bytes, read: str) -> None:
    assert media_type(value) == read


def test_an_accept_header_is_read_in_small_letters() -> None:
    assert media_type_list(b"Text/HTML;Q=0.5") == "text/html;q=0.5"


def test_headers_of_our_own_are_kept_as_they_came() -> None:
    exchange = exchange_of((b"Tailrace-Producer-Id", b"till-7 "), (b"tailrace-delivery", b"41"))

    assert exchange.own_headers == {b"tailrace-producer-id": b"till-7", b"tailrace-delivery": b"41"}
    assert Exchange().own_headers == {}


@pytest.mark.parametrize(
    "name",
    [
        b"tailrace-producer-id",
        b"tailrace-sequence",
        b"tailrace-delivery",
        b"tailrace-assignment-epoch",
    ],
)
def test_a_header_of_our_own_given_twice_is_a_list(name: bytes) -> None:
    exchange = exchange_of((name.title(), b"1"), (name, b""), (name, b" 1"))

    assert exchange.own_headers == {name: b"1, ,  1"}


HOST = (b"Host", b"a")


@pytest.mark.parametrize(
    ("headers", "version", "detail"),
    [
        ([], "1.1", "the request has no Host header, or two; send one"),
        ([HOST, (b"HOST", b"a")], "1.1", "the request has no Host header, or two; send one"),
        ([HOST, HOST], "1.0", "the request has no Host header, or two; send one"),
        ([HOST], "2.0", "HTTP/2.0 is not spoken here; send HTTP/1.1"),
        ([HOST], "0.9", "HTTP/0.9 is not spoken here; send HTTP/1.1"),
        (
            [HOST, (b"Transfer-Encoding", b"gzip, chunked")],
            "1.1",
            "Transfer-Encoding gzip, chunked is not taken; chunked alone is",
        ),
        (
            [HOST, *[(b"transfer-encoding", b"chunked")] * 2],
            "1.1",
            "Transfer-Encoding chunked, chunked is not taken; chunked alone is",
        ),
        (
            [(b"transfer-encoding", b"chunked")],
            "1.0",
            "Transfer-Encoding chunked is not taken; chunked alone is",
        ),
        (
            [HOST, (b"transfer-encoding", b"")],
            "1.1",
            "Transfer-Encoding none is not taken; chunked alone is",
        ),
    ],
)
def test_a_head_that_could_be_read_otherwise_is_refused(
    headers: list[tuple[bytes, bytes]], version: str, detail: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_head(exchange_of(*headers), version, b"POST")

    assert refused.value.detail == detail


def test_a_fragment_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="write %23"):
        check_head(exchange_of(HOST, target=b"/a#b"), "1.1", b"GET")


@pytest.mark.parametrize(
    ("headers", "has_body"),
    [
        ([], False),
        ([(b"Content-Length", b"0")], False),
        ([(b"Content-Length", b"12 ")], True),
        ([(b"Transfer-Encoding", b"Chunked ")], True),
    ],
)
def test_a_head_says_whether_a_body_comes(
    headers: list[tuple[bytes, bytes]], has_body: bool
) -> None:
    exchange = exchange_of(HOST, *headers)
    check_head(exchange, "1.1", b"POST")

    assert exchange.has_body == has_body


@pytest.mark.parametrize(("version", "expectation"), [("1.1", b"100-continue"), ("1.0", b"")])
def test_only_http_1_1_may_expect_something(version: str, expectation: bytes) -> None:
    exchange = exchange_of(HOST, (b"expect", b" 100-continue "))
    check_head(exchange, version, b"POST")

    assert exchange.expectation == expectation


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/", b"given"),
        (b"*", b"given"),
        (b"/http://a.example/", b"given"),
        (b"ftp://a.example/", b"given"),  # no path of ours
        (b"http://a.example", b"a.example"),
        (b"http://a.example:9250/status", b"a.example:9250"),
        (b"HTTPS://[::1]:9250?a=@", b"[::1]:9250"),
    ],
)
def test_the_host_is_the_one_in_the_target_if_it_names_one(target: bytes, host: bytes) -> None:
    exchange = exchange_of((b"host", b"given"), target=target)
    check_head(exchange, "1.1", b"GET")

    assert exchange.host == host


@pytest.mark.parametrize("target", [b"http:///status", b"http://localhost:1@a.example/status"])
def test_a_target_with_an_empty_host_or_a_user_is_refused(target: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="the target names"):
        check_head(exchange_of((b"host", b"localhost"), target=target), "1.1", b"GET")
