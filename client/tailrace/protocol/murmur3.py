"""The token of a key: the first half of Murmur3 x64-128, seed 0, as a signed number. Pure Python.

After Austin Appleby's MurmurHash3_x64_128 (smhasher). Some microseconds for a short key; where the
package `mmh3` is there, `token` is its function.
"""

import struct
from collections.abc import Callable

_MASK = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def plain_token(key: bytes) -> int:
    """The token, computed here."""
    tail = key[len(key) // 16 * 16 :]  # behind the last whole block
    halves = int.from_bytes(tail[:8], "little"), int.from_bytes(tail[8:], "little")
    return token_of_tail(key, *halves)


def token_of_tail(key: bytes, first_tail: int, second_tail: int) -> int:
    """`plain_token` with the tail's halves as given: Cassandra's variant reads them otherwise."""
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


def fastest() -> Callable[[bytes], int]:
    """The function of `mmh3` where that is installed."""
    try:
        import mmh3
    except ImportError:
        return plain_token
    return lambda key: int(mmh3.hash64(key, signed=True)[0])


token = fastest()
