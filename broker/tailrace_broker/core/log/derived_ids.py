"""Ids of producers for what has come to a partition from one of several parents.

See `core.ring.origins`.
"""

from functools import lru_cache
from hashlib import blake2b

_ID_BYTES = 16
_CACHED = 4096

# The partitions that an id has come through, each of them one of several parents of the next.
Links = tuple[int, ...]


@lru_cache(_CACHED)
def derived_id(id: bytes, links: Links) -> bytes:
    """Return the id of a producer for what has come through these partitions."""
    for link in links:
        id = blake2b(id + link.to_bytes(4, "little"), digest_size=_ID_BYTES).digest()
    return id
