"""Ids of producers in a partition that tells parts of a request from each other.

See `core.ring.origins`. The id is that of the request, changed by a mask. The mask depends on the
partition and a token alone, and neither on the partitions that were before it nor on those that are
still known: parents leave while requests are repeated, and a request that had another id then would
be stored twice.
"""

_ID_BYTES = 16


def derived_id(id: bytes, mask: int) -> bytes:
    """Return the id with this mask; with it once more, the id again. Masks add up by `^`."""
    return (int.from_bytes(id, "big") ^ mask).to_bytes(_ID_BYTES, "big") if mask else id
