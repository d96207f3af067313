"""Requests to brokers of a ring that are killed and paused meanwhile."""

from dataclasses import dataclass, field

from tailrace.protocol.requests import Answer
from tests.support.http.http11 import Connection


@dataclass(slots=True)
class Exchanges:
    """Connections to brokers, one to each port, open until `close`."""

    answer_s_max: float = 5.0
    _connections: dict[int, Connection] = field(default_factory=dict)

    def exchange(self, port: int, whole: bytes) -> Answer | None:
        """Send and wait. None: the answer was lost, if the request has arrived at all."""
        try:
            connection = self._connections.get(port)
            if connection is None:
                connection = self._connections[port] = Connection(port)
                connection.socket.settimeout(self.answer_s_max)
            answer = connection.exchange(whole)
        except OSError:
            lost = self._connections.pop(port, None)
            if lost is not None:
                lost.close()
            return None
        if answer.headers.get("connection") == "close":
            self._connections.pop(port).close()
        return answer

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections.values():
            connection.close()
