"""A proxy that knows nothing: each connection goes to the next broker that takes it."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

from tailrace.local.broker import HOST

BACKLOG = 64
PIECE_BYTES = 64 * 1024


class RoundRobin:
    """`port`: where it listens."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._turns = count()
        self._listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = {self._listener}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                accepted, _ = self._listener.accept()
                self._open.add(accepted)
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        backend = self._connect()
        if backend is None:
            accepted.close()
            return
        self._open.add(backend)
        back = threading.Thread(target=_copy, args=(backend, accepted), daemon=True)
        back.start()
        _copy(accepted, backend)
        back.join()
        for each in (accepted, backend):
            self._open.discard(each)
            each.close()

    def _connect(self) -> socket.socket | None:
        """To the next broker; a dead one refuses, and is passed over."""
        for _ in self._ports:
            with suppress(OSError):
                return socket.create_connection(
                    (HOST, self._ports[next(self._turns) % len(self._ports)]), 5
                )
        return None


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until the source ends, or either breaks."""
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def round_robin(ports: Sequence[int]) -> Iterator[int]:
    """Return the port of a proxy to these, for as long as the block lasts."""
    proxy = RoundRobin(ports)
    try:
        yield proxy.port
    finally:
        proxy.close()
