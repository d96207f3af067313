"""What the shipped shell has from outside the event loop: clocks and log lines; and bounds."""

from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from logging import CRITICAL
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import structlog

from tailrace_broker.groups import log as group_log
from tailrace_broker.groups import remote_log
from tailrace_broker.net.api import group_routing
from tailrace_broker.topics import range_leaders
from tests.simulation.ring.groups.logs import RECORD_BYTES

if TYPE_CHECKING:
    from tests.simulation.ring.world import World

# So that a partition of `__groups` is compacted now and then.
COMPACTED_BYTES_MIN = 25 * RECORD_BYTES
# Of requests whose coordinator changes: fewer steps than with the shipped pause.
RETRY_SECONDS = 0.25


@contextmanager
def simulated_time(world: "World") -> Iterator[None]:
    """While a scenario runs."""
    if world.replicas is None or world.replicas.groups is None:
        yield
        return
    before = structlog.get_config()
    silent = structlog.make_filtering_bound_logger(0 if world.is_traced else CRITICAL)

    def say(_: object, method: str, event: MutableMapping[str, Any]) -> str:
        world.say(f"  log: {event}")
        raise structlog.DropEvent

    structlog.configure(wrapper_class=silent, processors=[say])
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(remote_log, "monotonic", lambda: world.schedule.now_us / 1e6)
        )
        stack.enter_context(patch.object(group_log, "COMPACTED_BYTES_MIN", COMPACTED_BYTES_MIN))
        stack.enter_context(patch.object(group_routing, "RETRY_SECONDS", RETRY_SECONDS))
        # The model's machines replicate a range with one replica too.
        stack.enter_context(
            patch.object(range_leaders, "is_replicated", lambda owner: not owner.is_sealed)
        )
        try:
            yield
        finally:
            structlog.configure(**before)
