"""The links of this broker: to the leaders that it follows, and from its own followers.

The follower dials, so that between two brokers there is at most one link in each direction. A link
that breaks is dialled again for as long as its leader is followed; what was on it is lost, as the
machines expect it (`core/replication`).
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.replication import Reported, Standing, ToFollower, ToLeader
from tailrace_broker.net.peers.context import PeerContext, PeerCounters
from tailrace_broker.net.peers.handshake import Purpose, Side
from tailrace_broker.net.peers.sockets import close_all, listen_for_brokers, port_of
from tailrace_broker.net.replication.followed_leader import FollowedLeader, LeaderUser
from tailrace_broker.net.replication.link import Bytes, Link


class LinkUser(LeaderUser, Protocol):
    """Gets what followers send, too."""

    def on_follower(self, ordinal: int, message: ToLeader) -> None:
        """A follower's message."""


class ReplicationLinks:
    """To be made, and used, on the event loop."""

    def __init__(
        self,
        ordinal: int,
        *,
        address_of: Callable[[int], tuple[str, int]],
        secret: bytes,
        cluster_id: Callable[[], UUID | None],
        user: LinkUser,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`address_of` returns host and port at which another broker accepts followers."""
        loop = asyncio.get_running_loop()
        self._context = PeerContext(ordinal, secret, cluster_id, loop, Purpose.REPLICATION)
        self._address_of = address_of
        self._user = user
        self._spawn = spawn
        self._server: asyncio.Server | None = None
        self._followed: dict[int, FollowedLeader] = {}
        self._followers = _Followers(self._context, user)

    @property
    def counters(self) -> PeerCounters:
        """For metrics."""
        return self._context.counters

    async def listen(self, host: str, port: int) -> int:
        """Accept followers; the port (with 0 any free one). PortInUseError, InvalidSettingError."""
        accepted = partial(Link, self._context, Side.ACCEPTOR, self._followers)
        self._server = await listen_for_brokers(self._context.loop, accepted, host, port)
        return port_of(self._server)

    def follow(self, leaders: Collection[int]) -> None:
        """Keep a link to each of these brokers, and to no other."""
        for ordinal in [each for each in self._followed if each not in leaders]:
            self._followed.pop(ordinal).end()
        for ordinal in leaders:
            if ordinal not in self._followed:
                leader = FollowedLeader(ordinal, self._context, self._address_of, self._user)
                self._followed[ordinal] = leader
                self._spawn(leader.keep_link())

    def send_leader(self, ordinal: int, message: ToLeader) -> None:
        """Send to a followed leader. Without a link the message is lost."""
        leader = self._followed.get(ordinal)
        link = None if leader is None else leader.link
        self._send(link, message, ())

    def send_follower(
        self, ordinal: int, message: ToFollower, payload: Sequence[Bytes] = ()
    ) -> None:
        """Send to a follower, `Batches` with the stored batches. Without a link it is lost."""
        self._send(self._followers.links.get(ordinal), message, payload)

    async def close(self) -> None:
        """End all links, and make no more."""
        self._context.is_closed = True
        if self._server is not None:
            self._server.close()
        self.follow(())
        await close_all(self._context)

    def _send(
        self, link: Link | None, message: ToFollower | ToLeader, payload: Sequence[Bytes]
    ) -> None:
        if link is None:
            self._context.counters.dropped += 1
        else:
            link.send(message, payload)


class _Followers:
    """The accepted links by the follower's ordinal. Of one that dials again the last one counts."""

    def __init__(self, context: PeerContext, user: LinkUser) -> None:
        self.links: dict[int, Link] = {}
        self._context = context
        self._user = user

    def established(self, link: Link, ordinal: int) -> None:
        """Send to it by this link from now on."""
        previous = self.links.get(ordinal)
        self.links[ordinal] = link
        if previous is not None:
            previous.abort()

    def received(self, link: Link, frame: LinkFrame) -> None:
        """Hand on what the follower sends. CorruptFrameError: it is no follower's message."""
        message, ordinal = frame.message, link.ordinal
        assert ordinal is not None
        if not isinstance(message, Standing | Reported):
            raise CorruptFrameError("a follower sends a leader's message")
        if message.replica.ordinal != ordinal:
            raise CorruptFrameError(
                f"a message of broker {message.replica.ordinal} on the link of broker {ordinal}"
            )
        self._user.on_follower(ordinal, message)

    def lost(self, link: Link, error: Exception | None) -> None:
        """Its follower dials again, or is gone."""
        if link.ordinal is not None and self.links.get(link.ordinal) is link:
            del self.links[link.ordinal]
