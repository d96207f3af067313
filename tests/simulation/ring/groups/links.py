"""Connections between two processes for what one forwards to the other, on the data's port.

As the shipped ones they keep the order, and end as a whole: then nobody knows what became of the
requests that were sent. Each has the one that dialled it, and the one that took it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.model.forwarding import ToForwarder, ToServer
from tailrace_broker.net.replication.link import Link


class CallFrame(NamedTuple):
    """`order`: of the frames of one direction. `ordinal`: of the broker that sends it; `sender`,
    `receiver`: processes by their numbers.

    `message` None: the connection has ended.
    """

    link: int
    order: int
    ordinal: int
    sender: int
    receiver: int
    message: ToServer | ToForwarder | None
    payload: bytes = b""


class LinkUser(Protocol):
    """What has links: `forwarding.call_forwarder`, or `forwarding.forwarded_calls`."""

    def heard(self, link: "SimulatedLink", frame: LinkFrame) -> None:
        """A message has arrived."""

    def lost(self, link: "SimulatedLink") -> None:
        """Nothing more comes."""


class SimulatedLink:
    """One end; what the shipped code takes for a `Link`."""

    def __init__(self, number: int, ordinal: int, peer: int, send: Callable[[CallFrame], None]):
        """`peer`: the number of the process at the other end, which is broker `ordinal`."""
        self.number, self.ordinal, self.peer = number, ordinal, peer
        self.is_closed = False
        self.heard_count = 0
        self._sent_count = 0
        self._send = send

    @property
    def as_shipped(self) -> Link:
        """Under its shipped type."""
        return cast(Link, self)

    def send(
        self, message: ToServer | ToForwarder, payload: Sequence[bytes | memoryview] = ()
    ) -> None:
        """It arrives, or the connection ends."""
        if not self.is_closed:
            contents = b"".join(payload)
            self._send(self._frame(message, contents))
            self._sent_count += 1

    def _frame(self, message: ToServer | ToForwarder, contents: bytes) -> CallFrame:
        return CallFrame(self.number, self._sent_count, -1, -1, self.peer, message, contents)

    def consumed(self, size_bytes: int) -> None:
        """There is room again."""


class Links:
    """Of one process: those that it dialled, and those that it took."""

    def __init__(
        self,
        ordinal: int,
        mine: int,
        numbers: Callable[[], int],
        transmit: Callable[[int, CallFrame], None],
        process_of: Callable[[int], int | None],
        *,
        dialled: LinkUser,
        taken: LinkUser,
    ) -> None:
        """`mine`: this process's number; `process_of`: of a broker that can be reached."""
        self._ordinal = ordinal
        self._mine = mine
        self._numbers = numbers
        self._transmit = transmit
        self._process_of = process_of
        self._users = {True: dialled, False: taken}
        self._links: dict[int, tuple[SimulatedLink, bool]] = {}  # by number; whether dialled here

    def to(self, ordinal: int) -> Link | None:
        """The connection to a broker, which is made when there is none."""
        for link, is_dialled in self._links.values():
            if is_dialled and link.ordinal == ordinal:
                return link.as_shipped
        peer = self._process_of(ordinal)
        return (
            None
            if peer is None
            else self._new(self._numbers(), ordinal, peer, is_dialled=True).as_shipped
        )

    def receive(self, frame: CallFrame) -> None:
        """A frame of that broker has arrived; one that is missing ends the connection."""
        known = self._links.get(frame.link)
        if known is None and frame.receiver == self._mine and _begins(frame):
            known = self._new(frame.link, frame.ordinal, frame.sender, is_dialled=False), False
        if frame.message is None:
            if known is not None:
                self._close(known[0])
        elif known is None or frame.order > known[0].heard_count:
            end = CallFrame(frame.link, 0, self._ordinal, self._mine, frame.sender, None)
            self._transmit(frame.ordinal, end)
            if known is not None:
                self._close(known[0])
        elif frame.order == known[0].heard_count:
            link, is_dialled = known
            link.heard_count += 1
            self._users[is_dialled].heard(link, LinkFrame(frame.message, memoryview(frame.payload)))

    def broke(self, ordinal: int, *, later: Callable[[Callable[[], None]], None]) -> None:
        """All connections with that broker ended. Who took one may notice it `later`."""
        for link, is_dialled in [*self._links.values()]:
            if link.ordinal == ordinal and is_dialled:
                self._close(link)
            elif link.ordinal == ordinal:
                later(partial(self._close, link))

    def _new(self, number: int, ordinal: int, peer: int, *, is_dialled: bool) -> SimulatedLink:
        def send(frame: CallFrame) -> None:
            self._transmit(ordinal, frame._replace(ordinal=self._ordinal, sender=self._mine))

        link = SimulatedLink(number, ordinal, peer, send)
        self._links[number] = link, is_dialled
        return link

    def _close(self, link: SimulatedLink) -> None:
        known = self._links.pop(link.number, None)
        if known is None:
            return
        _, is_dialled = known
        link.is_closed = True
        self._users[is_dialled].lost(link)


def _begins(frame: CallFrame) -> bool:
    """A connection begins with a request."""
    return frame.order == 0 and isinstance(frame.message, ToServer)
