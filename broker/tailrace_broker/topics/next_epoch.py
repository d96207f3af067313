"""Begins the next epoch of a range whose leader, this broker, has given an epoch up."""

import asyncio

import structlog

from tailrace_broker.model.commands import Lead
from tailrace_broker.model.errors import NotAgreedError, NotReadyError, RingRefusedError
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.log.range_role import RangeRole

# After a refusal; the ring may have fenced this broker for a while.
RETRY_SECONDS = 0.2

_log = structlog.get_logger()


async def lead_in_next_epoch(ring: RingNode, role: RangeRole, range_id: int, epoch: int) -> None:
    """Propose to lead on, until the range has another epoch or the broker stops."""
    while role.epoch == epoch:
        mine = ring.registration
        assert mine is not None
        try:
            await ring.change(Lead(range_id, epoch, mine.ordinal, mine.number))
        except NotReadyError:
            return
        except NotAgreedError as error:
            _log.warning("epoch.refused", range=range_id, detail=error.detail)
        except RingRefusedError as error:
            _log.warning("epoch.refused", range=range_id, detail=error.detail)
            await asyncio.sleep(RETRY_SECONDS)
