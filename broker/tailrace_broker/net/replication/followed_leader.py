"""The link to one leader: dialled again and again for as long as this broker needs it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.model.errors import CorruptFrameError
from tailrace_broker.model.forwarding import AppendAnswers, CallAnswer, CallFailed, CallPart
from tailrace_broker.model.replication import Batches, Cuts, Heartbeat, Restart
from tailrace_broker.net.peers.context import PeerContext
from tailrace_broker.net.peers.handshake import Purpose, Side
from tailrace_broker.net.peers.sockets import open_connection
from tailrace_broker.net.replication.link import Link

CONNECT_SECONDS = 1.0
BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 1.0

_FROM_LEADER: dict[Purpose, tuple[type, ...]] = {
    Purpose.REPLICATION: (Cuts, Batches, Heartbeat, Restart),
    Purpose.FORWARDING: (AppendAnswers, CallAnswer, CallPart, CallFailed),
}

_log = structlog.get_logger()


class LeaderUser(Protocol):
    """Gets what leaders send, on the event loop."""

    def on_leader(self, link: Link, ordinal: int, frame: LinkFrame) -> None:
        """A leader's message. `link.consumed` follows when its payload is written or dropped."""

    def on_link_changed(self, ordinal: int) -> None:
        """The link to that leader is there, or was lost: what was on it may be lost."""


class FollowedLeader:
    """`link` is None while there is no connection."""

    def __init__(
        self,
        ordinal: int,
        context: PeerContext,
        address_of: Callable[[int], tuple[str, int]],
        user: LeaderUser,
        purpose: Purpose,
    ) -> None:
        """`purpose`: to follow it, or to forward requests to it."""
        self.link: Link | None = None
        self._ordinal = ordinal
        self._context = context
        self._address_of = address_of
        self._user = user
        self._purpose = purpose
        self._is_ended = False
        self._wake = asyncio.Event()
        self._backoff_s = BACKOFF_SECONDS_MIN

    async def keep_link(self) -> None:
        """Dial until `end`; after a failure not at once."""
        while not self._is_ended:
            self._wake.clear()
            if not await self._dial():
                self.wake_later()
            await self._wake.wait()

    def wake_later(self) -> None:
        """Dial again after a time that doubles."""
        self._context.loop.call_later(self._backoff_s, self._wake.set)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_SECONDS_MAX)

    def end(self) -> None:
        """Dial no more, and close the link."""
        self._is_ended = True
        if self.link is not None:
            self.link.abort()
        self._wake.set()

    async def _dial(self) -> bool:
        """Whether there is a connection; its handshake may still fail."""
        host, port = self._address_of(self._ordinal)
        opened = partial(
            Link, self._context, Side.DIALLER, self, self._ordinal, purpose=self._purpose
        )
        try:
            await open_connection(self._context.loop, host, port, opened, CONNECT_SECONDS)
        except OSError as error:  # a timeout as well
            if self._context.may_log(self._ordinal, "unreachable"):
                reason = str(error) or f"no answer in {CONNECT_SECONDS} s"
                _log.warning(
                    "leader.unreachable", peer=self._ordinal, host=host, port=port, error=reason
                )
            return False
        return True

    # --- what happens on the link ---

    def established(self, link: Link, ordinal: int) -> None:
        """From now on it may be asked."""
        if self._is_ended:
            link.abort()
            return
        self.link = link
        self._backoff_s = BACKOFF_SECONDS_MIN
        if self._context.may_log(ordinal, f"connected {self._purpose.name}"):
            _log.info("leader.connected", peer=ordinal, purpose=self._purpose.name.lower())
        self._user.on_link_changed(ordinal)

    def received(self, link: Link, frame: LinkFrame) -> None:
        """Hand on what the leader sends. CorruptFrameError: it is no leader's message."""
        if not isinstance(frame.message, _FROM_LEADER[self._purpose]):
            raise CorruptFrameError("a leader sends a follower's or another link's message")
        self._user.on_leader(link, self._ordinal, frame)

    def lost(self, link: Link, error: Exception | None) -> None:
        """Dial again, soon."""
        was_linked, self.link = self.link is link, None
        if self._is_ended:
            return
        self.wake_later()
        if was_linked:
            if self._context.may_log(self._ordinal, "lost"):
                _log.warning("leader.lost", peer=self._ordinal, error=str(error or "closed by it"))
            self._user.on_link_changed(self._ordinal)
