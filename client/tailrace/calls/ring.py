"""Calls about the ring. What changes it needs its secret, when it has one, as the client's token.

What they need is loaded when one is used.
"""

from typing import TYPE_CHECKING

from tailrace.calls.exchange import Caller

if TYPE_CHECKING:
    from tailrace.protocol.ring_values import RangeDetails, RingChange, RingDetails


async def ring(self: Caller, *, consistent: bool = False) -> "RingDetails":
    """The committed state of the ring, as this broker knows it; answered before it is ready.

    `consistent`: all that is committed up to now, which needs most of the voters.
    """
    from tailrace.protocol import ring_requests

    request = ring_requests.ring_request(consistent=consistent)
    return ring_requests.parse_ring(await self._exchange.ask(request))


async def ring_history(self: Caller) -> "list[RingChange]":
    """The last changes of leaders, ISRs, ghosts and registrations that this broker has applied.

    The oldest first, since the broker's start.
    """
    from tailrace.protocol import ring_requests

    request = ring_requests.ring_history_request()
    return ring_requests.parse_ring_history(await self._exchange.ask(request))


async def found(self: Caller, brokers: int) -> "RingDetails":
    """Found a ring of brokers 0 to `brokers` - 1, all of them empty; safe to repeat."""
    from tailrace.protocol import ring_requests

    request = ring_requests.found_request(brokers)
    return ring_requests.parse_ring(await self._exchange.ask(request))


async def accept_loss(self: Caller, range_id: int, broker: int) -> "RangeDetails":
    """Let a broker lead a range of which no whole replica is left: events may be lost."""
    from tailrace.protocol import ring_requests

    request = ring_requests.accept_loss_request(range_id, broker)
    return ring_requests.parse_range(await self._exchange.ask(request))


async def recover_metadata(self: Caller, *, accept_loss: bool) -> "RingDetails":
    """Let this voter go on alone, most of them being lost for good; `accept_loss` says so."""
    from tailrace.protocol import ring_requests

    request = ring_requests.recover_metadata_request(accept_loss=accept_loss)
    return ring_requests.parse_ring(await self._exchange.ask(request))
