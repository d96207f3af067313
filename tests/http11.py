"""HTTP/1.1 by hand: requests as bytes, cut and joined as a test likes, and answers one by one."""

import json
import socket
from typing import Any, Self

from tailrace.local_broker import HOST
from tailrace.requests import Answer

ANSWER_TIMEOUT_S = 20.0


def request(target: str, body: bytes = b"", /, *, method: str = "POST", **headers: Any) -> bytes:
    """A whole request; `content_type="…"` is a header, None leaves a usual one out."""
    given = {"host": HOST, "content_length": len(body)} | headers
    lines = [f"{method} {target} HTTP/1.1"] + [
        f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value is not None
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(target: str, /, *chunks: bytes, **headers: Any) -> bytes:
    """A request whose body comes in these chunks."""
    head = request(target, transfer_encoding="chunked", content_length=None, **headers)
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def document(answer: Answer) -> Any:
    """The answer's JSON."""
    return json.loads(answer.body)


class Connection:
    """One connection to a door."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
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

    def send(self, *parts: bytes) -> None:
        """Send the parts, each by itself."""
        for part in parts:
            self.socket.sendall(part)

    def exchange(self, *parts: bytes) -> Answer:
        """Send one request and receive its answer."""
        self.send(*parts)
        return self.receive()

    def receive(self) -> Answer:
        """The next answer; ConnectionResetError when the broker has closed."""
        status_line, *header_lines = iter(self._line, b"")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.decode().partition(":") for line in header_lines)
        }
        size_bytes = int(headers.get("content-length", 0))
        body = self._received.read(size_bytes)
        if len(body) < size_bytes:
            raise ConnectionResetError
        return Answer(int(status_line.split()[1]), headers, body)

    def is_closed(self) -> bool:
        """Whether the broker closed the connection behind the last answer; waits for it."""
        try:
            return self._received.read(1) == b""
        except ConnectionResetError:
            return True

    def _line(self) -> bytes:
        line = self._received.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError
        return line.removesuffix(b"\r\n")
