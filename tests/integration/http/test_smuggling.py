"""What two servers could read in two ways: refused, closed, nothing stored."""

import pytest

from tailrace.sync import Client
from tailrace_broker.net.http.connection import HEADER_BYTES_MAX
from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import (
    PUBLIC,
    Connection,
    chunked,
    messages,
    problem,
    request,
    through,
)

pytestmark = pytest.mark.integration

TARGET = messages("smuggled")
# What is to be taken for a request of its own.
HIDDEN = request(TARGET, b'"hidden"')


def framed(*header_lines: bytes, body: bytes = b"") -> bytes:
    """A produce with these header lines, which say how long its body is."""
    lines = [b"POST %s HTTP/1.1" % TARGET.encode(), b"host: a", *header_lines, b"", body]
    return b"\r\n".join(lines)


def in_chunks(size_line: bytes, *, after: bytes = b"\r\n", end: bytes = b"0\r\n\r\n") -> bytes:
    """A produce in two chunks of one byte, the second under this line."""
    first, second = b"1\r\n[\r\n", size_line + b"]" + after
    return framed(b"transfer-encoding: chunked", body=first + second + end)


CHUNKED = b"transfer-encoding: chunked"
LENGTHS = {
    "two lengths": (b"content-length: 1", b"content-length: %d" % len(HIDDEN)),
    "two equal lengths": (b"content-length: 1", b"content-length: 1"),
    "a list of lengths": (b"content-length: 1, 1",),
    "a length and chunks": (b"content-length: 1", CHUNKED),
    "chunks and a length": (CHUNKED, b"content-length: 1"),
    "chunks twice": (CHUNKED, CHUNKED),
    "a list of chunked": (b"transfer-encoding: chunked, chunked",),
    "chunked and another coding": (CHUNKED, b"transfer-encoding: identity"),
    "another coding and chunked": (b"transfer-encoding: gzip, chunked",),
    "another coding": (b"transfer-encoding: gzip",),
    "no coding": (b"transfer-encoding: identity",),
    "an empty coding": (b"transfer-encoding:",),
    "a coding with a tab": (b"transfer-encoding: \x0bchunked",),
    "a quoted coding": (b'transfer-encoding: "chunked"',),
    "a coding with a parameter": (b"transfer-encoding: chunked;q=1",),
    "nearly chunked": (b"transfer-encoding: xchunked",),
    "a space before the colon": (b"transfer-encoding : chunked",),
    "a space before the length's colon": (b"content-length : 1",),
    "a tab before the colon": (b"content-length\t: 1",),
    "a length with a plus": (b"content-length: +1",),
    "a length with a minus": (b"content-length: -1",),
    "a hexadecimal length": (b"content-length: 0x1",),
    "a length with an underscore": (b"content-length: 1_0",),
    "a length with a point": (b"content-length: 1.0",),
    "two words of length": (b"content-length: 1 1",),
    "no length": (b"content-length:",),
    "a length that overflows": (b"content-length: 18446744073709551617",),
    "a length of many zeros": (b"content-length: " + b"0" * 5_000 + b"1",),
    "a folded header": (b"x: a", b" b", b"content-length: 1"),
    "a folded length": (b"content-length:", b" 1"),
    "a folded coding": (b"transfer-encoding:", b"\tchunked"),
    "a first header that is folded": (b" x: a", b"content-length: 1"),
    "no colon": (b"content-length 1",),
    "no name": (b": 1", b"content-length: 1"),
    "a name of no token": (b"content(length: 1",),
    "a name of no ASCII": (b"content-length\xc2\xa0: 1",),
    "a NUL": (b"x: a\0b", b"content-length: 1"),
    "a return in a value": (b"x: a\rcontent-length: 1",),
    "a line feed in a value": (b"x: a\ncontent-length: 1",),
    "two hosts": (b"host: b", b"content-length: 1"),
}
BODY = b"1\r\n1\r\n0\r\n\r\n"
CASES = {
    **{name: framed(*lines, body=BODY) for name, lines in LENGTHS.items()},
    "no host": request(TARGET, b"1", host=None),
    "line feeds alone": framed(b"content-length: 1", body=b"1").replace(b"\r\n", b"\n"),
    "returns alone": framed(b"content-length: 1", body=b"1").replace(b"\r\n", b"\r"),
    "a line feed ends the head": framed(b"content-length: 1\n", body=b"1"),
    "a space behind the version": request(TARGET, b"1").replace(b"/1.1", b"/1.1 ", 1),
    "a tab for a space": request(TARGET, b"1").replace(b" /", b"\t/", 1),
    "a fragment": request(TARGET, b"1").replace(b"messages", b"messages?partitionKey=a#b", 1),
    "a NUL in the target": request(TARGET, b"1").replace(b"messages", b"messages\0", 1),
    "bytes in the target": request(TARGET, b"1").replace(b"messages", b"messages\xff", 1),
    "a method in small letters": request(TARGET, b"1").replace(b"POST", b"post", 1),
    "chunked by HTTP/1.0": chunked(TARGET, b"1").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "a size with a plus": in_chunks(b"+1\r\n"),
    "a size with a minus": in_chunks(b"-1\r\n"),
    "a size of another base": in_chunks(b"0x1\r\n"),
    "a size that is no number": in_chunks(b"g\r\n"),
    "no size": in_chunks(b"\r\n"),
    "a size that overflows": in_chunks(b"f" * 17 + b"\r\n"),
    "a space before the size": in_chunks(b" 1\r\n"),
    "a space behind the size": in_chunks(b"1 \r\n"),
    "a size line that ends in a line feed": in_chunks(b"1\n"),
    "an extension that ends in a line feed": in_chunks(b"1;a\n"),
    "an extension without a name": in_chunks(b"1;\r\n"),
    "a quoted line end in an extension": in_chunks(b'1;a="\r\n"\r\n'),
    "a chunk that is longer than its size": in_chunks(b"1\r\n", after=b"]\r\n"),
    "a chunk that ends in a line feed": in_chunks(b"1\r\n", after=b"\n"),
    "chunks that end in a line feed": in_chunks(b"1\r\n", end=b"0\r\n\n"),
    "a length for a trailer": in_chunks(b"1\r\n", end=b"0\r\ncontent-length: 5\r\n\r\n"),
    "a coding for a trailer": in_chunks(b"1\r\n", end=b"0\r\ntransfer-encoding: x\r\n\r\n"),
    "a folded trailer": in_chunks(b"1\r\n", end=b"0\r\nx: a\r\n b\r\n\r\n"),
    "a huge header": framed(b"x: " + b"v" * HEADER_BYTES_MAX, b"content-length: 1", body=b"1"),
    "many headers": framed(*[b"x: v"] * (HEADER_BYTES_MAX // 6), b"content-length: 1", body=b"1"),
    "a huge target": request(TARGET + "?partitionKey=" + "k" * HEADER_BYTES_MAX, b"1"),
    "another protocol": request(TARGET, b"1").replace(b"HTTP/1.1", b"SPDY/3", 1),
    "no protocol": b"hello\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
}
TOO_LARGE = {"a huge header", "many headers", "a huge target"}


@through(PUBLIC)
@pytest.mark.parametrize("in_pieces", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_and_nothing_behind_it_is_taken(
    shared_broker: RunningBroker,
    connection: Connection,
    plain: bytes,
    name: str,
    in_pieces: bool,
) -> None:
    sent = CASES[name] + HIDDEN
    assert connection.exchange(plain).status == 200
    connection.send(*([sent[i : i + 1] for i in range(len(sent))] if in_pieces else [sent]))
    answer = connection.receive()

    too_large, unreadable = (431, "header-too-large"), (400, "invalid-request")
    assert problem(answer) == (too_large if name in TOO_LARGE else unreadable)
    assert answer.headers["connection"] == "close"
    assert connection.is_closed()
    with Client(shared_broker.url) as client:
        assert client.topics() == []


@through(PUBLIC)
@pytest.mark.parametrize("separator", [b"\r\n", b"\n", b" ", b"\0"])
def test_a_target_cannot_end_its_line(
    shared_broker: RunningBroker, connection: Connection, separator: bytes
) -> None:
    """Percent-encoded it is a character like others."""
    hidden = b"".join(b"%%%02X" % byte for byte in separator + HIDDEN[:40])
    assert connection.exchange(request(f"/v1/nowhere/{hidden.decode()}")).status == 404
    answer = connection.exchange(request(f"/v1/topic/a{hidden.decode()}/messages", b"1"))

    assert answer.status in {400, 404}
    with Client(shared_broker.url) as client:
        assert client.topics() == []
