"""Which part of a request is which, in a partition that follows several others.

A request may bring events for two partitions that have one child. Its parts have the same producer
and sequence, and either may be stored without the other; in the child they are told from each other
by ids. So a child is cut into *pieces*, where its parents met and where they were cut themselves,
and each piece knows producers by ids of its own (`core.log.derived_ids`). A partition of one piece
knows them as they are.

The ring keeps the cuts with the partition for as long as that is there. So the ids of its requests
stay what they are when its parents leave. What an ancestor remembers is found under the child's ids
by the masks of both: the pieces of a child lie each in one piece of every ancestor.
"""

import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from tailrace_broker.core.ring.arithmetic import find_slice
from tailrace_broker.model.topic import Partition, Topic

_PIECE = struct.Struct("<Iq")
_MASK_BYTES = 16
NO_MASK = 0


class Origins(NamedTuple):
    """Of a partition: the mask of its ids is `masks[i]` for tokens from `starts[i]` on."""

    starts: tuple[int, ...]
    masks: tuple[int, ...]

    def of(self, token: int) -> int:
        """Return the mask of a token."""
        return self.masks[find_slice(self.starts, token)]


def origins_of(topic: Topic) -> Mapping[int, Origins]:
    """By partition, of those that have several pieces."""
    return {each.partition: _pieces(each) for each in topic.partitions if each.cuts}


def masks_between(ancestor: Partition, child: Partition) -> tuple[int, ...]:
    """Return the masks that make ids of the ancestor those of the child, for what both have."""
    old, new = _pieces(ancestor), _pieces(child)
    starts = {
        start
        for start in (*old.starts, *new.starts)
        if max(ancestor.token_start, child.token_start)
        <= start
        < min(ancestor.token_end, child.token_end)
    }
    return tuple(dict.fromkeys(old.of(start) ^ new.of(start) for start in sorted(starts)))


def _pieces(partition: Partition) -> Origins:
    starts = (partition.token_start, *partition.cuts)
    if not partition.cuts:
        return Origins(starts, (NO_MASK,))
    return Origins(starts, tuple(_mask(partition.partition, start) for start in starts))


def _mask(partition: int, start: int) -> int:
    """Masks differ in all partitions: else an ancestor's id of one piece may be another's here."""
    digest = blake2b(_PIECE.pack(partition, start), digest_size=_MASK_BYTES).digest()
    return int.from_bytes(digest, "big")
