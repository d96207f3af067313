"""What bounds a connection: sizes, times, memory, their number; and peers that misbehave."""

import contextlib
import resource
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailrace.wire import BATCH_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tailrace_broker.app.runtime import PROBE_CONNECTIONS_MAX
from tailrace_broker.net.http.answers import PIPELINED_MAX
from tailrace_broker.net.http.connection import (
    DIRECT_BODY_BYTES_MIN,
    DISCARD_BYTES_MAX,
    HEADER_BYTES_MAX,
)
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.broker.stored import LARGE_BYTES, LARGE_COUNT, produce_large, values_of
from tests.support.http.http11 import (
    METRICS,
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    chunked,
    document,
    every_listener,
    get,
    messages,
    new_topic,
    problem,
    produce_listeners,
    read_listeners,
    records,
    request,
    settle,
)
from tests.support.http.slow_readers import stalled_readers, trickling_readers
from tests.support.waits import wait_until

pytestmark = pytest.mark.integration

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
MAX_REQUEST_BYTES = 64 * KIBIBYTE
# Of a limit that a test does not mean to reach.
LONG_S = 3600.0
# More than the kernel's buffers of both ends hold.
UNREAD_BYTES_MAX = 64 * MEBIBYTE
STALLED_S = 1.0
FRAMES = pytest.mark.parametrize("frame", [request, chunked], ids=["length", "chunked"])


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes the connections that are made with it."""
    with ExitStack() as stack:
        yield stack


# --- sizes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One that takes small bodies only."""
    root = tmp_path_factory.mktemp("small")
    with start_broker(root, max_request_bytes=MAX_REQUEST_BYTES) as running:
        yield running


@produce_listeners
@FRAMES
def test_a_body_over_the_limit_is_refused_and_the_next_request_served(
    small_broker: RunningBroker, listener: int, topic: str, frame: Callable[..., bytes]
) -> None:
    with Connection(small_broker.port + listener) as connection:
        for body_bytes, status in [
            (MAX_REQUEST_BYTES, 200),
            (MAX_REQUEST_BYTES + 1, 413),
            (2, 200),
            (20 * MAX_REQUEST_BYTES, 413),
            (2, 200),
        ]:
            body = b'"%s"' % (b"x" * (body_bytes - 2))
            assert connection.exchange(frame(messages(topic), body)).status == status
    assert len(values_of(small_broker, topic)) == 3
    wait_for_metric(small_broker, "tailrace_produce_memory_bytes", 0)


@FRAMES
def test_a_line_over_the_limit_is_named(
    small_broker: RunningBroker, topic: str, frame: Callable[..., bytes]
) -> None:
    lines = [b"1", b"2" * (MAX_REQUEST_BYTES + 1), b"3"]
    many = [b"%d" % n for n in range(MAX_REQUEST_BYTES)]
    with Connection(small_broker.port) as connection:
        for body, line in ((b"\n".join(lines), 2), (b"\n".join(many), None)):
            sent = frame(messages(topic), body, content_type=NDJSON_CONTENT_TYPE)
            answer = connection.exchange(sent)

            assert problem(answer) == (413, "body-too-large")
            assert document(answer).get("line") == line
            assert "split the event" in document(answer)["detail"]
        assert connection.exchange(frame(messages(topic), b"1")).status == 200


def test_a_line_over_the_limit_is_asked_for_to_be_named(
    small_broker: RunningBroker, topic: str
) -> None:
    """As curl asks, for a body of this size."""
    body = b"1\n" + b"2" * (MAX_REQUEST_BYTES + 1)
    expecting = {"content_type": NDJSON_CONTENT_TYPE, "expect": "100-continue"}
    with Connection(small_broker.port) as connection:
        sent = request(messages(topic), content_length=len(body), **expecting)
        assert connection.exchange(sent).status == 100
        answer = connection.exchange(body)

        assert problem(answer) == (413, "body-too-large")
        assert document(answer)["line"] == 2


@produce_listeners
def test_a_body_over_the_limit_is_refused_before_it_is_sent(
    shared_broker: RunningBroker, connection: Connection
) -> None:
    """Else a client sends gigabytes in vain."""
    for size_bytes in (10**15, 10**19 - 1):
        with Connection(connection.socket.getpeername()[1]) as other:
            answer = other.exchange(request(messages("any"), content_length=size_bytes))

            assert problem(answer) == (413, "body-too-large")
            assert other.is_closed()


def head_of(size_bytes: int, plain: bytes) -> bytes:
    """A request without body whose head is of this size."""
    head = plain.replace(b"\r\n\r\n", b"\r\na: 1\r\nb: 2\r\nx: \r\n\r\n")
    return head.replace(b"x: ", b"x: " + b"v" * (size_bytes - len(head)))


@every_listener
@pytest.mark.parametrize("cut_bytes", [0, 20, HEADER_BYTES_MAX - 1, HEADER_BYTES_MAX])
def test_a_head_may_have_16_kib_wherever_it_is_cut(
    shared_broker: RunningBroker,
    connection: Connection,
    plain: bytes,
    listener: int,
    cut_bytes: int,
) -> None:
    for size_bytes, status in ((HEADER_BYTES_MAX, 200), (HEADER_BYTES_MAX + 1, 431)):
        head = head_of(size_bytes, plain)
        assert len(head) == size_bytes
        connection.send(head[:cut_bytes])
        settle(shared_broker.port + listener)
        connection.send(head[cut_bytes:] + plain)
        assert connection.receive().status == status
        if status == 200:
            assert connection.receive().status == 200
    assert connection.is_closed()


@every_listener
def test_a_head_without_end_is_refused(
    shared_broker: RunningBroker, connection: Connection, plain: bytes, listener: int
) -> None:
    connection.send(plain[:-2] + b"x: ")
    for _ in range(5):
        settle(shared_broker.port + listener)
        connection.send(b"v" * 4 * KIBIBYTE)

    assert problem(connection.receive()) == (431, "header-too-large")
    assert connection.is_closed()


@produce_listeners
def test_trailers_without_end_are_refused(connection: Connection, topic: str) -> None:
    connection.send(chunked(messages(topic), b"1").removesuffix(b"\r\n"))
    with contextlib.suppress(OSError):
        connection.send(*[b"x: " + b"y" * 4096 + b"\r\n"] * 64)

    assert connection.receive().status == 431


@produce_listeners
def test_a_chunk_size_without_end_is_refused(connection: Connection, topic: str) -> None:
    connection.send(request(messages(topic), content_length=None, transfer_encoding="chunked"))
    with contextlib.suppress(OSError):
        connection.send(b"1;", *[b"y" * 4096] * 64)

    assert connection.receive().status == 431


@produce_listeners
def test_chunks_may_have_more_than_16_kib_of_sizes_all_together(
    shared_broker: RunningBroker, connection: Connection, listener: int, topic: str
) -> None:
    """Though none of them comes with a piece of the body."""
    connection.send(request(messages(topic), content_length=None, transfer_encoding="chunked"))
    for piece in (b"[", b"1", b",", b"2", b",", b"3", b"]"):
        connection.send(b"1;" + b"x" * 4 * KIBIBYTE + b"\r\n")
        settle(shared_broker.port + listener)
        connection.send(piece + b"\r\n")
        settle(shared_broker.port + listener)
    answer = connection.exchange(b"0\r\n\r\n")

    assert answer.status == 200
    assert values_of(shared_broker, topic) == [b"[1,2,3]"]


# --- memory ---------------------------------------------------------------------------------------


@produce_listeners
def test_produce_memory_is_bounded_and_comes_back(
    tmp_path: Path, listener: int, topic: str
) -> None:
    limits = {"produce_memory_bytes": MEBIBYTE, "max_request_bytes": MEBIBYTE}
    large = request(messages(topic), b'"%s"' % (b"x" * (MEBIBYTE - 2)))
    with (
        start_broker(tmp_path, **limits) as broker,
        Connection(broker.port + listener) as first,
        Connection(broker.port + listener) as second,
    ):
        first.send(large[:-1])
        wait_for_metric(broker, "tailrace_produce_memory_bytes", MEBIBYTE)

        refused = second.exchange(request(messages(topic), b"1"))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert second.exchange(chunked(messages(topic), b"1")).status == 429

        assert first.exchange(large[-1:]).status == 200
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 0)
        assert second.exchange(request(messages(topic), b"1")).status == 200


@produce_listeners
def test_who_announces_much_and_sends_little_keeps_nobody_out(
    tmp_path: Path, opened: ExitStack, listener: int, topic: str
) -> None:
    limits = {"produce_memory_bytes": 2 * MEBIBYTE, "max_request_bytes": MEBIBYTE}
    head = request(messages(topic), content_length=MEBIBYTE)
    with start_broker(tmp_path, **limits) as broker:
        for _ in range(8):
            opened.enter_context(Connection(broker.port + listener)).send(head + b'"')
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 8)
        whole = opened.enter_context(Connection(broker.port + listener))

        assert whole.exchange(request(messages(topic), b"1")).status == 200
        large = b'"%s"' % (b"x" * (MEBIBYTE // 2))
        assert whole.exchange(request(messages(topic), large)).status == 200


@produce_listeners
def test_memory_that_is_full_when_most_of_a_body_comes_refuses_it(
    tmp_path: Path, opened: ExitStack, listener: int, topic: str
) -> None:
    limits = {"produce_memory_bytes": MEBIBYTE, "max_request_bytes": MEBIBYTE}
    large = request(messages(topic), b'"%s"' % (b"x" * (MEBIBYTE - 2)))
    with start_broker(tmp_path, **limits) as broker:
        late = opened.enter_context(Connection(broker.port + listener))
        late.send(large[: 16 * KIBIBYTE])  # room for all of it, and nothing is kept free
        first = opened.enter_context(Connection(broker.port + listener))
        first.send(large[: MEBIBYTE // 2])
        late.send(large[16 * KIBIBYTE : -1])
        answers = [late.exchange(large[-1:]).status, first.exchange(large[MEBIBYTE // 2 :]).status]

        assert sorted(answers) in ([200, 429], [429, 429])
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 0)
        assert late.exchange(request(messages(topic), b"1")).status == 200


LARGE = b'"%s"' % (b"x" * 100_000)


def produces_of_every_length(frame: Callable[..., bytes]) -> list[bytes]:
    """Beginnings of a produce: within the head, behind it, in the body, all but a byte, all."""
    whole = frame(messages("lost"), LARGE)
    head_bytes = whole.index(b"\r\n\r\n") + 4
    ends = (10, head_bytes - 1, head_bytes, head_bytes + 1, 1_000, 70_000, len(whole) - 1)
    return [whole[:end] for end in (*ends, len(whole))]


# What a peer has sent when it is lost, and so where its request is.
LOST = {
    "with a length": produces_of_every_length(request),
    "in chunks": produces_of_every_length(chunked),
    "refused": [
        part.replace(b"/lost/", b"/lost/no/") for part in produces_of_every_length(request)
    ],
    "an offer": [
        part.replace(b"\r\n", b"\r\nconnection: upgrade\r\nupgrade: x\r\n", 1)
        for part in produces_of_every_length(request)
    ],
    "asking": [request(messages("lost"), content_length=100_000, expect="100-continue")],
    "behind each other": [request(messages("lost"), LARGE) * 20],
    "behind a long poll": [
        get(records("empty", waitMs=60_000)) + request(messages("lost"), LARGE) * 3
    ],
    "a long poll with a body": [request(records("empty", waitMs=60_000), LARGE, method="GET")],
    "a change": [request("/v1/topics", b'{"name":"made"}') * 2 + b"POST"],
    "behind an answer that is not taken": [
        get(records("large")) * 9 + request(messages("lost"), LARGE)[:-1]
    ],
}


@pytest.fixture(scope="module")
def losing_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """With a topic that stays empty and one of large values."""
    with start_broker(tmp_path_factory.mktemp("losing")) as running:
        with Connection(running.port) as public:
            assert public.exchange(new_topic("empty")).status == 201
        produce_large(running, "large")
        yield running


# A closed peer looks like one that has only ended its side and still waits for its answer.
LOSSES = [
    *((state, True) for state in LOST),
    *((state, False) for state in LOST if "long poll" not in state),
]


@pytest.mark.parametrize(("state", "is_reset"), LOSSES)
def test_a_connection_that_is_lost_in_any_state_leaves_nothing_behind(
    losing_broker: RunningBroker, state: str, is_reset: bool
) -> None:
    for sent in LOST[state]:
        with Connection(losing_broker.port) as connection:
            connection.send(sent)
            settle(losing_broker.port)
            if is_reset:
                connection.reset()
    wait_for_metric(losing_broker, "tailrace_produce_memory_bytes", 0)

    with Connection(losing_broker.port) as connection:
        assert connection.exchange(request(messages("lost"), b"2")).status == 200


@produce_listeners
def test_a_refused_request_holds_no_memory_while_it_waits_for_its_turn(
    tmp_path: Path, listener: int
) -> None:
    size_bytes = MEBIBYTE
    with (
        start_broker(tmp_path, max_request_bytes=size_bytes) as broker,
        Connection(broker.port) as connection,
        Connection(broker.port) as other,
    ):
        assert other.exchange(new_topic("empty")).status == 201
        over = chunked(messages("t"), *[bytes(size_bytes // 4)] * 5)
        connection.send(get(records("empty", waitMs=60_000)), over)
        settle(broker.port)
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 0)
        assert other.exchange(request(messages("empty"), b"1")).status == 200

        assert [connection.receive().status for _ in range(2)] == [200, 413]


# --- times ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def broker_with(root: pytest.TempPathFactory, **settings: float) -> Iterator[RunningBroker]:
    """With a topic that stays empty and these limits; others are out of reach."""
    others = dict.fromkeys(("header_seconds", "request_seconds", "idle_seconds"), LONG_S)
    with start_broker(root.mktemp("limits"), **{**others, **settings}) as running:
        with Connection(running.port) as public:
            assert public.exchange(new_topic("empty")).status == 201
        yield running


@pytest.fixture(scope="module")
def broker_of_short_heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with broker_with(tmp_path_factory, header_seconds=0.2) as running:
        yield running


@pytest.fixture(scope="module")
def broker_of_short_requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    memory = {"max_request_bytes": MEBIBYTE, "produce_memory_bytes": MEBIBYTE}
    with broker_with(tmp_path_factory, request_seconds=0.2, **memory) as running:
        yield running


@pytest.fixture(scope="module")
def broker_of_short_pauses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with broker_with(tmp_path_factory, idle_seconds=0.2) as running:
        yield running


@every_listener
@pytest.mark.parametrize("sent_bytes", [1, 20, -1])
def test_a_head_that_does_not_arrive_is_not_waited_for(
    broker_of_short_heads: RunningBroker, plain: bytes, listener: int, sent_bytes: int
) -> None:
    with Connection(broker_of_short_heads.port + listener) as stalled:
        assert stalled.exchange(plain).status == 200
        answer = stalled.exchange(plain[:sent_bytes])

        assert problem(answer) == (408, "request-timeout")
        assert document(answer)["detail"].startswith("the head of the request did not arrive")
        assert stalled.is_closed()


@produce_listeners
@pytest.mark.parametrize(
    "sent",
    [
        request(messages("t"), content_length=MEBIBYTE),
        request(messages("t"), content_length=MEBIBYTE) + b"x",
        request(messages("t"), content_length=MEBIBYTE) + b"x" * 100_000,
        request(messages("t"), content_length=100) + b"x",
        chunked(messages("t"), b"x" * 100).removesuffix(b"0\r\n\r\n"),
        chunked(messages("t"), b"x" * 100).removesuffix(b"\r\n"),
        request(messages("t"), content_length=MEBIBYTE, expect="100-continue"),
    ],
    ids=["head", "some", "more", "little", "chunks", "trailers", "asking"],
)
def test_a_request_that_does_not_arrive_holds_its_memory_only_for_a_time(
    broker_of_short_requests: RunningBroker, listener: int, sent: bytes
) -> None:
    port = broker_of_short_requests.port + listener
    with Connection(port) as stalled:
        stalled.send(sent)
        if b"expect" in sent:
            assert stalled.receive().status == 100

        assert problem(stalled.receive()) == (408, "request-timeout")
        assert stalled.is_closed()
        with Connection(port) as other:
            large = b'"%s"' % (b"x" * (MEBIBYTE - 2))
            assert other.exchange(request(messages("t"), large)).status == 200


def test_refused_chunks_without_end_are_not_waited_for(
    broker_of_short_heads: RunningBroker,
) -> None:
    """However much time their request has."""
    head = request("/v1/nowhere", content_length=None, transfer_encoding="chunked")
    with Connection(broker_of_short_heads.port) as connection:
        chunk = b"%x\r\n%s\r\n" % (MEBIBYTE, bytes(MEBIBYTE))
        connection.send(head, *[chunk] * (DISCARD_BYTES_MAX // MEBIBYTE), b"1\r\nx\r\n")
        answer = connection.receive()

        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert connection.is_closed()


def test_the_head_has_its_own_time_and_the_body_some_more(tmp_path: Path) -> None:
    settings = {"header_seconds": 0.1, "request_seconds": 1.0}
    with start_broker(tmp_path, **settings) as broker, Connection(broker.port) as stalled:
        stalled.send(request(messages("t"), b"12")[:5])
        settle(broker.port)
        stalled.send(request(messages("t"), b"12")[5:-1])
        answer = stalled.receive()

    assert document(answer)["detail"] == (
        "the request did not arrive whole within 1 s; nothing was stored"
    )


def test_a_refused_request_is_answered_with_its_refusal_though_it_does_not_arrive(
    broker_of_short_requests: RunningBroker,
) -> None:
    for sent in (request("/nowhere", content_length=100), chunked("/nowhere", b"1")[:-2]):
        with Connection(broker_of_short_requests.port) as stalled:
            assert stalled.exchange(sent).status == 404
            assert stalled.is_closed()


def test_a_request_that_the_broker_does_not_read_is_not_late(tmp_path: Path) -> None:
    """So many others wait before it that it is not read on."""
    limits = {"header_seconds": 2.5, "request_seconds": 2.5}
    with start_broker(tmp_path, **limits) as broker, Connection(broker.port) as connection:
        assert connection.exchange(new_topic("empty")).status == 201
        poll = get(records("empty", waitMs=6_000))
        waiting = get("/live") * PIPELINED_MAX
        last = request(messages("t"), b"1")
        connection.send(poll + waiting + last[:-1])

        assert [connection.receive().status for _ in range(PIPELINED_MAX + 1)] == [200] * (
            PIPELINED_MAX + 1
        )
        assert connection.exchange(last[-1:]).status == 200


@every_listener
@pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "empty lines"])
def test_an_idle_connection_is_closed(
    broker_of_short_pauses: RunningBroker, plain: bytes, listener: int, sent: bytes
) -> None:
    port = broker_of_short_pauses.port + listener
    with Connection(port) as unused:
        unused.send(sent)
        assert unused.is_closed()
    with Connection(port) as used:
        assert used.exchange(plain).status == 200
        used.send(sent)
        assert used.is_closed()


@read_listeners
def test_a_connection_that_waits_for_its_answer_is_not_idle(
    broker_of_short_pauses: RunningBroker, listener: int
) -> None:
    with Connection(broker_of_short_pauses.port + listener) as waiting:
        for _ in range(2):
            assert waiting.exchange(get(records("empty", waitMs=600))).status == 200


STALLED = {
    "a binary answer": get(records("large", maxBytes=16 * MEBIBYTE), accept=BATCH_CONTENT_TYPE),
    "a stream": get(records("large")),
    "a last answer": get(records("large"), connection="close"),
    "several": get(records("large")) * 20 + request(messages("t"), LARGE)[:-1],
}


def is_established(connection: Connection) -> bool:
    """Whether the broker has its end of it (proc_net_tcp(5)); 1 is TCP_ESTABLISHED."""
    own_port = connection.socket.getsockname()[1]
    broker_port = connection.socket.getpeername()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if local.endswith(f":{broker_port:04X}") and remote.endswith(f":{own_port:04X}"):
            return int(state, 16) == 1
    return False


def receive_all(connection: Connection, count: int) -> None:
    for _ in range(count):
        connection.receive()


@pytest.fixture(scope="module")
def broker_with_timeouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """For two seconds a MiB; more records in its topic `large` than a stalled connection takes."""
    with broker_with(tmp_path_factory, answer_seconds=2.0) as running:
        produce_large(running, "large", value_bytes=3 * LARGE_BYTES)
        yield running


@pytest.mark.parametrize("name", STALLED)
def test_a_peer_that_takes_nothing_of_an_answer_is_dropped(
    broker_with_timeouts: RunningBroker, name: str
) -> None:
    broker, sent = broker_with_timeouts, STALLED[name]
    with Connection(broker.port, receive_buffer_bytes=4 * KIBIBYTE) as stalled:
        stalled.send(sent)
        settle(broker.port)
        wait_until(lambda: not is_established(stalled), lambda: "it is still waited for")
        with pytest.raises(ConnectionResetError):
            receive_all(stalled, sent.count(b"GET"))
    wait_for_metric(broker, "tailrace_produce_memory_bytes", 0)
    wait_for_metric(broker, "tailrace_read_memory_bytes", 0)


@pytest.mark.parametrize(
    ("asked", "pause_ms"),
    [
        (get(records("large")), 150),
        (get(records("large", maxBytes=16 * MEBIBYTE), accept=BATCH_CONTENT_TYPE), 300),
    ],
    ids=["stream", "one answer"],
)
def test_a_peer_that_takes_an_answer_slowly_gets_all_of_it(
    broker_with_timeouts: RunningBroker, asked: bytes, pause_ms: int
) -> None:
    """It takes several times as long as one is waited for that takes nothing."""
    port = broker_with_timeouts.port
    with Connection(port) as other:

        def wait() -> None:
            assert other.exchange(get(records("empty", waitMs=pause_ms))).status == 200

        with Connection(port, receive_buffer_bytes=4 * KIBIBYTE, between_pieces=wait) as slow:
            answer = slow.exchange(asked)

        assert answer.headers["tailrace-next-offset"] == str(LARGE_COUNT)
        assert answer.body == other.exchange(asked).body


@produce_listeners
def test_a_peer_that_does_not_read_its_answers_is_not_read_from(
    shared_broker: RunningBroker, listener: int, topic: str
) -> None:
    """Else its answers would fill the broker's memory. Later it gets all of them."""
    wrong = request(f"/nowhere/{topic}", x="v" * 500)
    sent = 0
    with Connection(shared_broker.port + listener, receive_buffer_bytes=4 * KIBIBYTE) as connection:
        while select.select([], [connection.socket], [], STALLED_S)[1]:
            sent += connection.socket.send((wrong * 200)[sent % len(wrong) :])
            assert sent < UNREAD_BYTES_MAX, "the broker takes requests without end"
        for _ in range(sent // len(wrong)):
            assert connection.receive().status == 404


# --- memory of readers ------------------------------------------------------------------------


READ_MEMORY_BYTES = 40 * MEBIBYTE
LARGE_ANSWER = get(records("large", maxBytes=16 * MEBIBYTE), accept=BATCH_CONTENT_TYPE)


@pytest.fixture(scope="module", params=[0, 32 * MEBIBYTE], ids=["from disk", "from memory"])
def broker_of_small_memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """With some 25 MiB in its topic `large`, which two of its largest answers fill."""
    memory = {"read_memory_bytes": READ_MEMORY_BYTES, "cache_bytes": request.param}
    with broker_with(tmp_path_factory, answer_seconds=1.0, **memory) as running:
        produce_large(running, "large", value_bytes=4 * MEBIBYTE)
        yield running


@pytest.mark.parametrize("asked", [LARGE_ANSWER, get(records("large"))], ids=["binary", "text"])
def test_stalled_readers_hold_no_more_than_the_read_memory(
    broker_of_small_memory: RunningBroker, opened: ExitStack, asked: bytes
) -> None:
    """They are cut off in time, and who came behind them is answered."""
    broker = broker_of_small_memory
    before = broker.metrics()
    stalled_readers(broker, opened, asked, count=30)
    seen = [before]

    def dropped() -> float:
        seen.append(broker.metrics())
        name = "tailrace_slow_readers_dropped_total"
        return seen[-1][name] - before[name]

    wait_until(lambda: dropped() >= 2, lambda: "they are still waited for")
    used_bytes = max(metrics["tailrace_read_memory_bytes"] for metrics in seen)
    resident_bytes = max(metrics["process_resident_memory_bytes"] for metrics in seen)

    assert READ_MEMORY_BYTES / 2 < used_bytes <= READ_MEMORY_BYTES
    grown_bytes = resident_bytes - before["process_resident_memory_bytes"]
    assert grown_bytes < 2 * READ_MEMORY_BYTES
    wait_for_metric(broker, "tailrace_read_memory_bytes", 0)
    with Connection(broker.port + READ) as reader:
        assert reader.exchange(asked).status == 200


def test_a_reader_waits_for_memory_and_is_then_refused(
    broker_of_small_memory: RunningBroker,
) -> None:
    """Others hold it all, who take their answers just fast enough."""
    broker = broker_of_small_memory
    with (
        trickling_readers(broker, LARGE_ANSWER, count=2),
        Connection(broker.port + READ) as reader,
        Connection(broker.port) as producer,
    ):
        settle(broker.port)
        reader.send(LARGE_ANSWER)
        assert producer.exchange(request(messages("t"), b"1")).status == 200
        answer = reader.receive()

        assert problem(answer) == (503, "read-memory-full")
        assert answer.headers["retry-after"] == "1"
        assert producer.exchange(request(messages("t"), b"2")).status == 200
    wait_for_metric(broker, "tailrace_read_memory_bytes", 0)
    with Connection(broker.port + READ) as reader:
        assert reader.exchange(LARGE_ANSWER).status == 200


# --- how many -------------------------------------------------------------------------------------


def wait_for_room(broker: RunningBroker) -> None:
    """Until a connection is taken again."""

    def is_taken() -> bool:
        with contextlib.suppress(ConnectionResetError), Connection(broker.port) as connection:
            return connection.exchange(get("/live")).status == 200
        return False

    wait_until(is_taken, lambda: "no connection is taken")


def test_more_connections_than_may_be_open_are_refused(tmp_path: Path, opened: ExitStack) -> None:
    """All listeners of clients together; the metrics can still be read."""
    listeners = (PUBLIC, PRODUCE, READ)
    with start_broker(tmp_path, connections_max=len(listeners)) as broker:
        kept = [opened.enter_context(Connection(broker.port + listener)) for listener in listeners]
        assert kept[PUBLIC].exchange(get("/live")).status == 200
        for listener in listeners:
            with Connection(broker.port + listener) as refused:
                answer = refused.receive()

                assert problem(answer) == (503, "too-many-connections")
                assert answer.headers["retry-after"] == "1"
                assert answer.headers["connection"] == "close"
                assert refused.is_closed()
        assert kept[READ].exchange(get("/status")).status == 200
        assert broker.metrics()["tailrace_connections"] == len(listeners)
        kept[PRODUCE].close()
        wait_for_room(broker)


def test_more_readers_of_the_metrics_than_make_sense_are_refused(
    broker: RunningBroker, opened: ExitStack
) -> None:
    """And take nothing from the clients."""
    metrics = get("/metrics")
    for _ in range(PROBE_CONNECTIONS_MAX):
        connection = opened.enter_context(Connection(broker.port + METRICS))
        assert connection.exchange(metrics).status == 200
    refused = opened.enter_context(Connection(broker.port + METRICS))

    assert problem(refused.receive()) == (503, "too-many-connections")
    wait_for_room(broker)


def test_the_answer_to_one_connection_too_many_arrives_though_it_sends(
    tmp_path: Path, opened: ExitStack
) -> None:
    with start_broker(tmp_path, connections_max=1) as broker:
        kept = opened.enter_context(Connection(broker.port))
        assert kept.exchange(get("/live")).status == 200
        refused = opened.enter_context(Connection(broker.port + READ))
        refused.send(request("/nowhere", bytes(MEBIBYTE)))

        assert problem(refused.receive()) == (503, "too-many-connections")
        assert refused.is_closed()
        assert kept.exchange(get("/live")).status == 200


def test_a_broker_without_file_descriptors_goes_on_when_some_are_free(
    broker: RunningBroker, opened: ExitStack
) -> None:
    with Connection(broker.port) as first:
        assert first.exchange(request(messages("t"), b"1")).status == 200
        open_count = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (open_count + 10, hard))
        many = [opened.enter_context(Connection(broker.port + PUBLIC)) for _ in range(50)]
        assert first.exchange(get("/live")).status == 200

        for connection in many:
            connection.close()
        wait_for_room(broker)
        assert first.exchange(request(messages("t"), b"2")).status == 200
    assert "error" not in broker.log_path.read_text()


@produce_listeners
def test_hundreds_of_slow_senders_get_408_and_a_normal_producer_is_answered_meanwhile(
    tmp_path: Path, opened: ExitStack, listener: int
) -> None:
    with start_broker(tmp_path, header_seconds=1.0, request_seconds=2.0) as broker:
        producer = opened.enter_context(Connection(broker.port + listener))
        slow = [opened.enter_context(Connection(broker.port + listener)) for _ in range(500)]
        for number, connection in enumerate(slow):
            body_bytes = DIRECT_BODY_BYTES_MIN // 2 if number % 2 else 2 * DIRECT_BODY_BYTES_MIN
            whole = request(messages("slow"), content_length=body_bytes)
            connection.send(whole if number % 3 else whole[:12])
        answered = 0
        waiting = {connection.socket.fileno(): connection for connection in slow}
        while waiting:
            assert producer.exchange(request(messages("normal"), b"1")).status == 200
            for number in select.select(list(waiting), [], [], 0)[0]:
                connection = waiting.pop(number)
                assert problem(connection.receive()) == (408, "request-timeout")
                answered += 1
            for connection in waiting.values():
                with contextlib.suppress(OSError):
                    connection.send(b"x")

        assert answered == len(slow)
        assert len(values_of(broker, "normal")) > 1
        wait_for_metric(broker, "tailrace_produce_memory_bytes", 0)
