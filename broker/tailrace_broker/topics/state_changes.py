"""What differs between two states of the ring, for the topics that a broker hosts."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace_broker.model.ring_state import RangeState, RingState


def says_the_same(before: RingState | None, after: RingState) -> bool:
    """Whether topics and ranges are what they were."""
    parts = ("topics", "deleted", "ranges")
    return before is not None and all(
        getattr(before, each) is getattr(after, each) for each in parts
    )


def touched(before: Mapping[int, RangeState], after: Mapping[int, RangeState]) -> set[int]:
    """Ranges whose partitions may belong elsewhere now."""
    if before is after:
        return set()
    return {
        range_id
        for range_id, new in after.items()
        if range_id not in before or _place_of(before[range_id]) != _place_of(new)
    }


def _place_of(found: RangeState) -> tuple[object, ...]:
    return (
        found.leader,
        found.epoch,
        found.sealed_epoch,
        found.complete,
        found.replicas,
        found.accepted,
    )


def changed_settings(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """Those of a topic that are not what they were, as they are now."""
    before = msgspec.structs.asdict(old)
    return {
        name: value for name, value in msgspec.structs.asdict(new).items() if before[name] != value
    }
