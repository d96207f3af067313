"""Calls about the ring. What changes it needs its secret, when it has one, as the client's token.

What they need is loaded when one is used.
"""

from typing import TYPE_CHECKING, Literal

from tailrace.calls.exchange import Caller

if TYPE_CHECKING:
    from tailrace.protocol.ring_values import (
        AcceptedLoss,
        RingChange,
        RingDetails,
        RingPlan,
        StepResult,
    )


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


async def step(self: Caller, kind: Literal["grow", "shrink"], brokers_before: int) -> "StepResult":
    """Grow or shrink the ring by one broker, from `brokers_before` on; done when this returns.

    A retriable ProblemError `step-not-taken`: not now; `members["reason"]` says why.
    """
    from tailrace.protocol import ring_requests

    request = ring_requests.step_request(kind, brokers_before)
    return ring_requests.parse_step_result(await self._exchange.ask(request))


async def ring_plan(self: Caller, brokers: int) -> "RingPlan":
    """The steps in which the ring would come to so many brokers; nothing is changed."""
    from tailrace.protocol import ring_requests

    request = ring_requests.ring_plan_request(brokers)
    return ring_requests.parse_ring_plan(await self._exchange.ask(request))


async def retire(self: Caller, broker: int, *, accept_loss: bool = False) -> "RingDetails":
    """Let a broker that has left the ring go for good: its disk can never come back.

    A retriable ProblemError `step-not-taken` until others have whole copies of what it holds.
    """
    from tailrace.protocol import ring_requests

    request = ring_requests.retire_request(broker, accept_loss=accept_loss)
    return ring_requests.parse_ring(await self._exchange.ask(request))


async def accept_loss(
    self: Caller, range_id: int, broker: int, *, dry_run: bool = False
) -> "AcceptedLoss":
    """Let a broker lead a range of which no whole replica is left: events may be lost.

    Of a sealed range that broker's copy counts as whole; `lost` of the answer is what it lacks.
    """
    from tailrace.protocol import ring_requests

    request = ring_requests.accept_loss_request(range_id, broker, dry_run=dry_run)
    return ring_requests.parse_accepted_loss(await self._exchange.ask(request))


async def recover_metadata(self: Caller, *, accept_loss: bool) -> "RingDetails":
    """Let this voter go on alone, most of them being lost for good; `accept_loss` says so."""
    from tailrace.protocol import ring_requests

    request = ring_requests.recover_metadata_request(accept_loss=accept_loss)
    return ring_requests.parse_ring(await self._exchange.ask(request))
