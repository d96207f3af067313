"""Streams of requests, cut anywhere or damaged anywhere: the same answers, or at worst refusals."""

import contextlib
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol.records_binary import encode_records
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE
from tailrace_broker.net.http.connection import DIRECT_BODY_BYTES_MIN
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.http.http11 import (
    METRICS,
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    chunked,
    get,
    messages,
    new_topic,
    old,
    records,
    request,
)

pytestmark = pytest.mark.integration

PIPELINED_COUNT_MAX = 12
CUT_COUNT_MAX = 12
DAMAGE_COUNT_MAX = 6
# What differs from one run of the same requests to the next: offsets, and with their digits the
# length; and 100, which is not sent when other answers wait.
VARYING = re.compile(
    rb'"offset":\d+|^(?:date|content-length): .*\r\n|HTTP/1.1 100 Continue\r\n\r\n', re.MULTILINE
)
OFFER = {"connection": "upgrade", "upgrade": "h2c"}
LINES = b'1\n\n"two"\r\n[3]'
LARGE = b'"%s"' % (b"x" * (DIRECT_BODY_BYTES_MIN + 100))
RECORDS = encode_records([b"a", b"b"], [b"1", None])

# Of each kind of request one; those whose answers do not depend on what was stored before.
KINDS = {
    "event": request(messages("fuzz", partitionKey="k"), b'{"a":1}'),
    "large event": request(messages("fuzz", partitionKey="k"), LARGE),
    "event in chunks": chunked(messages("fuzz", partitionKey="k"), b"[", b"1,2", b"]"),
    "large event in chunks": chunked(messages("fuzz", partitionKey="k"), LARGE[:9], LARGE[9:]),
    "lines": request(messages("fuzz", partitionKey="%FF"), LINES, content_type=NDJSON_CONTENT_TYPE),
    "lines in chunks": chunked(
        messages("fuzz", partitionKey=""), LINES[:5], LINES[5:], content_type=NDJSON_CONTENT_TYPE
    ),
    "records": request(messages("fuzz"), RECORDS, content_type=RECORDS_CONTENT_TYPE),
    "no JSON": request(messages("fuzz"), b'{"a":}'),
    "no body": request(messages("fuzz")),
    "bad time": request(messages("fuzz", timestamp="x"), LARGE),
    "asking": request(messages("fuzz", partitionKey="k"), b"1", expect="100-continue"),
    "offering": request(messages("fuzz", partitionKey="k"), b"1", **OFFER),
    "offering with much": request(messages("fuzz", partitionKey="k"), LARGE, **OFFER),
    "offering nothing": get("/live", **OFFER),
    "kept old": old(get("/live"), b"connection: keep-alive\r\n"),
    "read": get(records("kept")),
    "read as an array": get(records("kept"), accept=JSON_CONTENT_TYPE),
    "read of nothing": get(records("none")),
    "not acceptable": get(records("kept"), accept="text/html"),
    "topics": get("/v1/topics/kept"),
    "bad topic": new_topic("a b"),
    "no path": request("/nowhere", LARGE),
    "no method": request("/status", LINES, method="PUT"),
    "no expectation": request("/status", b"1", expect="a miracle", method="GET"),
    "empty lines": b"\r\n\r\n" + get("/status"),
    "trailers": chunked(messages("fuzz", partitionKey="k"), b"1")[:-2] + b"x: y\r\nz:\r\n\r\n",
    "extensions": chunked("/nowhere", b"1").replace(b"\r\n1\r\n", b'\r\n1;a="b"\r\n'),
}
# The last answer is followed by the end of the connection.
CLOSING = get("/live", connection="close")


@pytest.fixture(scope="module")
def fuzzed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """With a topic that nothing is produced to any more. It is to log no error."""
    with start_broker(tmp_path_factory.mktemp("fuzzed")) as running:
        with Connection(running.port) as public:
            for sent, status in [
                (new_topic("kept"), 201),
                (request(messages("kept"), b'{"kept":true}'), 200),
                (request(messages("fuzz"), b"1"), 200),
            ]:
                assert public.exchange(sent).status == status
        yield running
        wait_for_metric(running, "tailrace_produce_memory_bytes", 0)
        running.stop()
        levels = re.findall(r'"level": "(\w+)"', running.log_path.read_text())
        assert set(levels) <= {"info", "warning"}
        assert "Traceback" not in running.log_path.read_text()


kinds = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=PIPELINED_COUNT_MAX)
listeners = st.sampled_from([PUBLIC, PRODUCE, READ, METRICS])


def all_received(connection: Connection) -> bytes:
    """What comes until the broker closes; TimeoutError when it does not."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.socket.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


@given(st.data(), kinds, listeners)
def test_requests_are_answered_the_same_wherever_they_are_cut(
    fuzzed_broker: RunningBroker, data: st.DataObject, drawn: list[str], listener: int
) -> None:
    stream = b"".join(KINDS[name] for name in drawn) + CLOSING
    places = st.lists(st.integers(1, len(stream) - 1), max_size=CUT_COUNT_MAX, unique=True)
    cuts = [0, *sorted(data.draw(places)), len(stream)]
    port = fuzzed_broker.port + listener
    with Connection(port) as whole, Connection(port) as cut, Connection(port) as other:
        whole.send(stream)
        for start, end in pairwise(cuts):
            cut.send(stream[start:end])
            assert other.exchange(get("/nowhere")).status == 404  # the broker has read it
        expected, answered = all_received(whole), all_received(cut)

    assert expected.startswith(b"HTTP/1.1 ")
    assert VARYING.sub(b"", answered) == VARYING.sub(b"", expected)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A stream of requests with some bytes changed, taken out, put in, or doubled."""
    stream = bytearray(b"".join(KINDS[name] for name in draw(kinds)))
    for _ in range(draw(st.integers(1, DAMAGE_COUNT_MAX))):
        place = draw(st.integers(0, len(stream)))
        length = draw(st.integers(0, 20))
        new = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b"\r\n", b"\n", b" ", b":", b"0", b"-", b"%", b"\r\n\r\n", b";"]),
                st.just(bytes(stream[max(0, place - 30) : place])),
            )
        )
        stream[place : place + length] = new
    return bytes(stream)


@settings(max_examples=200)
@given(damaged(), listeners)
def test_damaged_requests_are_answered_and_end(
    fuzzed_broker: RunningBroker, sent: bytes, listener: int
) -> None:
    """What the broker logs is looked at in the end."""
    port = fuzzed_broker.port + listener
    with Connection(port) as connection:
        with contextlib.suppress(OSError):  # it may have been refused long ago
            connection.send(sent)
            connection.end_sending()
        answered = all_received(connection)

    assert answered == b"" or answered.startswith(b"HTTP/1.1 ")
    assert fuzzed_broker.is_running()
    with Connection(port) as other:
        assert other.exchange(get("/nowhere")).status == 404
