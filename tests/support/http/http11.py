"""HTTP/1.1 by hand: requests as bytes, cut and joined as a test likes, and answers one by one."""

import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote

import pytest

from tailrace.local.broker import HOST
from tailrace.protocol.requests import Answer
from tailrace.wire import JSON_CONTENT_TYPE

# Ports above the base: docs/protocol.md.
PUBLIC, PRODUCE, READ, METRICS = range(4)
_LISTENER_NAMES = {PUBLIC: "public", PRODUCE: "produce", READ: "read", METRICS: "metrics"}

ANSWER_TIMEOUT_S = 60.0  # on a busy machine
_PIECE_BYTES = 512 * 1024
# Statuses without a body, and without a content-length (RFC 9110, 8.6).
_BODILESS = {100, 204}
_RESET_ON_CLOSE = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def through(*listeners: int) -> pytest.MarkDecorator:
    """Run a test at each of these listeners; its argument `listener` is to be added to the port."""
    return pytest.mark.parametrize(
        "listener", listeners, ids=[_LISTENER_NAMES[listener] for listener in listeners]
    )


every_listener = through(PUBLIC, PRODUCE, READ, METRICS)
produce_listeners = through(PUBLIC, PRODUCE)
read_listeners = through(PUBLIC, READ)


def request(target: str, body: bytes = b"", /, *, method: str = "POST", **headers: Any) -> bytes:
    """A whole request; `content_type="…"` is a header, None leaves a usual one out.

    Usual with a body is a content type of JSON.
    """
    given = {"host": HOST, "content_length": len(body)} | headers
    if given["content_length"] or "transfer_encoding" in given:
        given = {"content_type": JSON_CONTENT_TYPE} | given
    lines = [f"{method} {target} HTTP/1.1"] + [
        f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value is not None
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(target: str, /, **headers: Any) -> bytes:
    """A whole GET."""
    return request(target, method="GET", content_length=None, **headers)


def old(whole: bytes, *header_lines: bytes) -> bytes:
    """A request as an HTTP/1.0 peer sends it, with these headers too."""
    return whole.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n" + b"".join(header_lines), 1)


def chunked(target: str, /, *chunks: bytes, **headers: Any) -> bytes:
    """A request whose body comes in these chunks."""
    head = request(target, transfer_encoding="chunked", content_length=None, **headers)
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def messages(topic: str, **query: str | int | None) -> str:
    """The target of a produce; names as on the wire, None is left out."""
    return _with_query(f"/v1/topic/{topic}/messages", query)


def records(topic: str, partition: int = 0, **query: str | int | None) -> str:
    """The target of a read; names as on the wire, None is left out."""
    return _with_query(f"/v1/topic/{topic}/partitions/{partition}/records", query)


def new_topic(name: str, *, partitions: int = 1, **settings: Any) -> bytes:
    """A whole request that creates a topic."""
    wanted = {"name": name, "partitionsPerRange": partitions, **settings}
    return request("/v1/topics", json.dumps(wanted).encode())


def document(answer: Answer) -> Any:
    """The answer's JSON."""
    return json.loads(answer.body)


def problem(answer: Answer) -> tuple[int, str]:
    """What a refusal is: its status and the last part of its type."""
    return answer.status, document(answer)["type"].rpartition("/")[2]


def settle(port: int) -> None:
    """Until the broker has read what other connections sent before."""
    with Connection(port) as other:
        assert other.exchange(get("/nowhere")).status == 404


class Connection:
    """One connection to a listener."""

    def __init__(
        self,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        between_pieces: Callable[[], object] = lambda: None,
    ) -> None:
        """`between_pieces` of a body is called, to take it slowly."""
        self._between_pieces = between_pieces
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(ANSWER_TIMEOUT_S)
        try:
            self.socket.connect((HOST, port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, whatever is under way."""
        self._received.close()
        self.socket.close()

    def reset(self) -> None:
        """Close it as a peer that fails does."""
        self.socket.setsockopt(*_RESET_ON_CLOSE)
        self.close()

    def send(self, *parts: bytes) -> None:
        """Send the parts, one by one."""
        for part in parts:
            self.socket.sendall(part)

    def end_sending(self) -> None:
        """Nothing more will come from here; answers still may."""
        self.socket.shutdown(socket.SHUT_WR)

    def exchange(self, *parts: bytes) -> Answer:
        """Send one request and receive its answer."""
        self.send(*parts)
        return self.receive()

    def receive(self, *, is_head_only: bool = False) -> Answer:
        """The next answer; ConnectionResetError when the broker closed before its end."""
        status_line, *header_lines = iter(self._line, b"")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.decode().partition(":") for line in header_lines)
        }
        status = int(status_line.split()[1])
        has_body = not is_head_only and status not in _BODILESS
        return Answer(status, headers, self._body(headers) if has_body else b"")

    def is_closed(self) -> bool:
        """Whether the broker closed the connection behind the last answer; waits for it."""
        try:
            return self._received.read(1) == b""
        except ConnectionResetError:
            return True

    def _body(self, headers: Mapping[str, str]) -> bytes:
        """By its length, in chunks, or up to the end of the connection (RFC 9112, 6.3)."""
        if "content-length" in headers:
            return self._exactly(int(headers["content-length"]))
        if "transfer-encoding" not in headers:
            assert headers["connection"] == "close", headers
            return self._received.read()
        assert headers["transfer-encoding"] == "chunked"
        chunks = []
        while size_bytes := int(self._line(), 16):
            chunks.append(self._exactly(size_bytes))
            assert self._line() == b""
        assert self._line() == b""
        return b"".join(chunks)

    def _exactly(self, size_bytes: int) -> bytes:
        pieces = []
        while size_bytes:
            piece = self._received.read(min(size_bytes, _PIECE_BYTES))
            if not piece:
                raise ConnectionResetError
            pieces.append(piece)
            size_bytes -= len(piece)
            self._between_pieces()
        return b"".join(pieces)

    def _line(self) -> bytes:
        line = self._received.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError
        return line.removesuffix(b"\r\n")


def _with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    pairs = [
        f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None
    ]
    return f"{path}?{'&'.join(pairs)}" if pairs else path
