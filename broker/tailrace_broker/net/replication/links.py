"""The links of this broker: to the leaders that it follows, and from its own followers; to those
to which it forwards requests, and from those that forward to it.

Who follows or forwards dials, so that between two brokers there are at most two links in each
direction. A link that breaks is dialled again for as long as it is needed; what was on it is lost,
as the machines expect it (`core/replication`, `core/forwarding`).
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.forwarding import ToServer
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


class ForwardedUser(Protocol):
    """Gets what is forwarded to this broker."""

    def on_forwarded(self, link: Link, frame: LinkFrame) -> None:
        """Requests of a broker, whose answers go to `link`. `link.consumed` follows."""

    def on_forwarder_lost(self, link: Link) -> None:
        """Nobody waits for answers on this link any more."""

    def flush(self) -> None:
        """Hand the links all answers that there are: they are about to be closed."""


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
        forwarder: LeaderUser | None = None,
        forwarded: ForwardedUser | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`address_of` returns host and port at which another broker accepts followers.

        `forwarder` gets what leaders answer; `forwarded`: without it no requests are taken.
        """
        loop = asyncio.get_running_loop()
        others = () if forwarded is None else (Purpose.FORWARDING,)
        self._context = PeerContext(
            ordinal, secret, cluster_id, loop, Purpose.REPLICATION, others=others
        )
        self._address_of = address_of
        self._user = user
        self._spawn = spawn
        self._server: asyncio.Server | None = None
        self._followed: dict[int, FollowedLeader] = {}
        self._forwarder = forwarder
        self._forwarded_to: dict[int, FollowedLeader] = {}
        self._followers = _Followers(user)
        self._accepted = _Accepted(self._followers, _Forwarders(forwarded))

    @property
    def counters(self) -> PeerCounters:
        """For metrics."""
        return self._context.counters

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port (with 0 any free one).

        PortInUseError, InvalidSettingError.
        """
        accepted = partial(Link, self._context, Side.ACCEPTOR, self._accepted)
        self._server = await listen_for_brokers(self._context.loop, accepted, host, port)
        return port_of(self._server)

    def follow(self, leaders: Collection[int]) -> None:
        """Keep a link to each of these brokers, and to no other."""
        self._keep_links(self._followed, leaders, self._user, Purpose.REPLICATION)

    def forward_to(self, leaders: Collection[int]) -> None:
        """Keep a link to forward requests to each of these brokers, and to no other."""
        assert self._forwarder is not None
        self._keep_links(self._forwarded_to, leaders, self._forwarder, Purpose.FORWARDING)

    def _keep_links(
        self,
        kept: dict[int, FollowedLeader],
        leaders: Collection[int],
        user: LeaderUser,
        purpose: Purpose,
    ) -> None:
        for ordinal in [each for each in kept if each not in leaders]:
            kept.pop(ordinal).end()
        for ordinal in leaders:
            if ordinal not in kept:
                leader = FollowedLeader(ordinal, self._context, self._address_of, user, purpose)
                kept[ordinal] = leader
                self._spawn(leader.keep_link())

    def forwarding_link(self, ordinal: int) -> Link | None:
        """The link to forward requests to this broker. None: there is none now."""
        leader = self._forwarded_to.get(ordinal)
        return None if leader is None else leader.link

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

    def call_when_taken(self, ordinal: int, call: Callable[[], None]) -> None:
        """`call` when a follower has taken the batches sent so far, or has no link."""
        link = self._followers.links.get(ordinal)
        if link is None:
            self._context.loop.call_soon(call)
        else:
            link.call_when_taken(call)

    def has_follower(self, ordinal: int) -> bool:
        """There is a link from that broker."""
        return ordinal in self._followers.links

    def has_room(self, ordinal: int) -> bool:
        """There is one, and no more batches wait on it than that broker takes at once."""
        link = self._followers.links.get(ordinal)
        return link is not None and link.has_room

    @property
    def received_bytes(self) -> int:
        """Batches of leaders that are not written yet: at most a window, or a batch, of each."""
        links = [each.link for each in self._followed.values()]
        return sum(each.under_way_bytes for each in links if each is not None)

    async def close(self) -> None:
        """End all links, and make no more."""
        self._context.is_closed = True
        if self._server is not None:
            self._server.close()
        self._accepted.flush()
        self.follow(())
        self._keep_links(self._forwarded_to, (), self._user, Purpose.FORWARDING)
        await close_all(self._context)

    def _send(
        self, link: Link | None, message: ToFollower | ToLeader, payload: Sequence[Bytes]
    ) -> None:
        if link is None:
            self._context.counters.dropped += 1
        else:
            link.send(message, payload)


class _Accepted:
    """The accepted links: of followers, or of brokers that forward requests."""

    def __init__(self, followers: "_Followers", forwarders: "_Forwarders") -> None:
        self._followers = followers
        self._forwarders = forwarders

    def established(self, link: Link, ordinal: int) -> None:
        """Keep it, and end the one before of the same broker."""
        kept = self._forwarders if link.forwards else self._followers
        previous = kept.links.get(ordinal)
        kept.links[ordinal] = link
        if previous is not None:
            previous.abort()

    def received(self, link: Link, frame: LinkFrame) -> None:
        """Hand on what it brings. CorruptFrameError."""
        kept = self._forwarders if link.forwards else self._followers
        kept.received(link, frame)

    def lost(self, link: Link, error: Exception | None) -> None:
        """Who dialled dials again, or is gone."""
        kept = self._forwarders if link.forwards else self._followers
        if link.ordinal is not None and kept.links.get(link.ordinal) is link:
            del kept.links[link.ordinal]
        if link.ordinal is not None and link.forwards:
            self._forwarders.lost(link)

    def flush(self) -> None:
        """Send what brokers that forward are answered."""
        if self._forwarders.user is not None:
            self._forwarders.user.flush()
        for link in self._forwarders.links.values():
            link.flush()


class _Followers:
    """Their links by ordinal. Of one that dials again the last one counts."""

    def __init__(self, user: LinkUser) -> None:
        self.links: dict[int, Link] = {}
        self._user = user

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


class _Forwarders:
    """The links of brokers that forward requests, likewise."""

    def __init__(self, user: ForwardedUser | None) -> None:
        self.links: dict[int, Link] = {}
        self.user = user

    def received(self, link: Link, frame: LinkFrame) -> None:
        """Hand on requests. CorruptFrameError: it is none."""
        assert self.user is not None
        if not isinstance(frame.message, ToServer):
            raise CorruptFrameError("who forwards requests sends something else")
        self.user.on_forwarded(link, frame)

    def lost(self, link: Link) -> None:
        """Nobody waits for its answers."""
        assert self.user is not None
        self.user.on_forwarder_lost(link)
