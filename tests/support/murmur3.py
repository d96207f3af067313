"""Murmur3 written out, and Cassandra's variant of it: what tokens are checked against.

The plain one is the client's own. The other is after Cassandra's MurmurHash.java and
Murmur3Partitioner.java; seed 0, as in both.
"""

from tailrace.protocol.murmur3 import plain_token, token_of_tail

__all__ = ["cassandra_token", "plain_token"]

_MASK = 2**64 - 1


def cassandra_token(key: bytes) -> int:
    """The token that Cassandra's Murmur3Partitioner gives a key."""
    if not key:
        return -(2**63)
    tail = key[len(key) // 16 * 16 :]
    token = token_of_tail(key, _sign_extended(tail[:8]), _sign_extended(tail[8:]))
    return 2**63 - 1 if token == -(2**63) else token


def _sign_extended(half: bytes) -> int:
    """Java's bytes are signed: one from 0x80 on sets, here flips, all bits above it too."""
    value = 0
    for index, byte in enumerate(half):
        value ^= (byte - 256 if byte >= 0x80 else byte) << 8 * index
    return value & _MASK
