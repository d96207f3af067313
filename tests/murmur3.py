"""Murmur3 x64-128 written out, and Cassandra's variant of it: what tokens are checked against.

After Austin Appleby's MurmurHash3_x64_128 (smhasher) and Cassandra's MurmurHash.java and
Murmur3Partitioner.java; seed 0, as in both.
"""

import struct

_MASK = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def plain_token(key: bytes) -> int:
    """The first half of the hash as a signed number."""
    first_tail, second_tail = _tail(key)
    return _token(key, int.from_bytes(first_tail, "little"), int.from_bytes(second_tail, "little"))


def cassandra_token(key: bytes) -> int:
    """The token that Cassandra's Murmur3Partitioner gives a key."""
    if not key:
        return -(2**63)
    first_tail, second_tail = _tail(key)
    token = _token(key, _sign_extended(first_tail), _sign_extended(second_tail))
    return 2**63 - 1 if token == -(2**63) else token


def _tail(key: bytes) -> tuple[bytes, bytes]:
    """What follows the last whole block of 16 bytes, as two halves."""
    tail = key[len(key) // 16 * 16 :]
    return tail[:8], tail[8:]


def _sign_extended(half: bytes) -> int:
    """Java's bytes are signed: one from 0x80 on sets, here flips, all bits above it too."""
    value = 0
    for index, byte in enumerate(half):
        value ^= (byte - 256 if byte >= 0x80 else byte) << 8 * index
    return value & _MASK


def _token(key: bytes, first_tail: int, second_tail: int) -> int:
    h1 = h2 = 0
    for k1, k2 in struct.iter_unpack("<QQ", key[: len(key) // 16 * 16]):
        h1 ^= _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK

    h1 ^= _rotate(first_tail * _C1 & _MASK, 31) * _C2 & _MASK
    h2 ^= _rotate(second_tail * _C2 & _MASK, 33) * _C1 & _MASK
    h1, h2 = h1 ^ len(key), h2 ^ len(key)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    first = _mix(h1) + _mix(h2) & _MASK
    return first - 2**64 if first >= 2**63 else first


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
