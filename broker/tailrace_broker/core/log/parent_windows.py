"""What a child of sealed partitions must know of the producers of its parents. A machine.

A sealed log never changes, so what is remembered of it does not: a request that it has is a
duplicate, one that it may have forgotten is unknown. A part of a request that was for a parent as a
whole may be for the child: it has as many events as the original, or fewer.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from tailrace_broker.codec.producers import ProducerState
from tailrace_broker.core.log.derived_ids import derived_id
from tailrace_broker.core.log.producers import (
    ROWS,
    Producer,
    WindowLimits,
    check_count,
    sequence_unknown,
)


class Inherited(NamedTuple):
    """A request that an ancestor has stored: where its first event is."""

    partition: int
    offset: int


class AncestorWindows(NamedTuple):
    """What one ancestor remembers. `masks`: `core.ring.origins.masks_between` it and the child."""

    partition: int
    masks: Sequence[int]
    producers: Sequence[ProducerState]


class ParentWindows:
    """The producers of all ancestors that may matter."""

    def __init__(
        self,
        ancestors: Sequence[AncestorWindows] = (),
        limits: WindowLimits = WindowLimits(),  # noqa: B008  immutable
    ) -> None:
        self._limits = limits
        self._known: dict[bytes, list[tuple[int, ProducerState]]] = {}
        for partition, masks, producers in ancestors:
            for each, mask in product(producers, masks):
                self._known.setdefault(derived_id(each.id, mask), []).append((partition, each))

    def find(self, producer: Producer, record_count: int, now_us: int) -> Inherited | None:
        """None: no ancestor has the request. SequenceUnknownError; SequenceReusedError."""
        known = self._known.get(producer.id)
        if known is None:
            return None
        is_forgotten = False
        for partition, state in known:
            rows = np.frombuffer(state.rows, ROWS)
            found = rows[rows["sequence"] == producer.sequence]
            if len(found):
                row = found[-1]
                if row["append_time_us"] <= now_us - self._limits.age_us:
                    raise sequence_unknown(producer)
                if record_count > row["record_count"]:
                    check_count(producer, record_count, int(row["record_count"]))
                return Inherited(partition, int(row["offset"]))
            is_forgotten |= producer.sequence <= state.forgotten
        if is_forgotten:
            raise sequence_unknown(producer)
        return None
