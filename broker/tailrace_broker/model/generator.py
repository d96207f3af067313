"""Randomness, as machines are given it: what is drawn is up to who makes them."""

from typing import Protocol


class Generator(Protocol):
    """Of random numbers; `random.Random` is one."""

    def randint(self, a: int, b: int, /) -> int:
        """Return a number from `a` to `b`, both included."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Return a number from `start` to `stop`, exclusive."""

    def getrandbits(self, k: int, /) -> int:
        """Return a number from 0 to 2**k, exclusive."""
