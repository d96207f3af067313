"""Where an answer ends for the load generator, however its bytes arrive."""

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.load import HOST, LoadError, _Connection

WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello\r\nyou!"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ndate: now\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No Content\r\nretry-after: 1\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"5\r\n0000\n\r\nb\r\n0\n\n0\r0\n0000\r\n0\r\n\r\n"
NO_CHUNK = CHUNKED_HEAD + b"0\r\n\r\n"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with closing(socket.create_server((HOST, 0))) as server:
        yield server


def wait_readable(connection: _Connection) -> bool:
    """For a second at most; `select.select` takes no descriptor above 1,023."""
    poller = select.poll()
    poller.register(connection.socket, select.POLLIN)
    return bool(poller.poll(1000))


def receive(connection: _Connection) -> None:
    """Until the answer is whole."""
    while not connection.receive():
        assert wait_readable(connection), "the answer is not whole"


@pytest.mark.parametrize("buffer_bytes", [1, 2, 3, 7, 64, 100_000])
def test_answers_end_where_they_say(listener: socket.socket, buffer_bytes: int) -> None:
    connection = _Connection(listener.getsockname()[1], memoryview(bytearray(buffer_bytes)))
    peer, _ = listener.accept()
    with closing(connection.socket), closing(peer):
        for answer in (WITH_LENGTH, CHUNKED, NOTHING, EMPTY, NO_CHUNK, NOTHING, WITH_LENGTH):
            peer.sendall(answer)
            receive(connection)

            assert connection.is_empty == (answer is NOTHING)
            assert not connection.receive(), "something of the answer was left"


def test_an_answer_in_chunks_goes_on_up_to_the_last(listener: socket.socket) -> None:
    connection = _Connection(listener.getsockname()[1], memoryview(bytearray(9)))
    peer, _ = listener.accept()
    with closing(connection.socket), closing(peer):
        for end in range(1, len(CHUNKED)):
            peer.sendall(CHUNKED[end - 1 : end])
            wait_readable(connection)

            assert not connection.receive(), end


def test_a_problem_is_an_error(listener: socket.socket) -> None:
    connection = _Connection(listener.getsockname()[1], memoryview(bytearray(4096)))
    peer, _ = listener.accept()
    with closing(connection.socket), closing(peer):
        peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")

        with pytest.raises(LoadError, match="503"):
            receive(connection)
