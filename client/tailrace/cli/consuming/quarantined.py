"""Damage that a reader meets: offsets that a broker has quarantined, or that were given up."""

from typing import NamedTuple, Self

from tailrace.errors import ProblemError, TailraceError

_PROBLEM_TYPE = "corrupt-partition"  # docs/protocol.md, "Problems"


class Quarantined(NamedTuple):
    """Offsets of a partition that cannot be read; it goes on at `next_offset`.

    `is_accepted`: they are lost for good, and somebody has accepted that.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    next_offset: int
    is_accepted: bool

    @classmethod
    def of(cls, error: TailraceError) -> Self | None:
        """Return what the error names; None: the error differs, or nothing follows."""
        if not isinstance(error, ProblemError):
            return None
        names = ("topic", "partition", "firstOffset", "lastOffset", "nextOffset")
        topic, *numbers = (error.members.get(name) for name in names)
        partition, first, last, following = (
            number if isinstance(number, int) else None for number in numbers
        )
        is_known = error.type == _PROBLEM_TYPE
        if not is_known or partition is None or first is None or last is None or following is None:
            return None
        is_accepted = error.members.get("accepted") is True
        return cls(str(topic), partition, first, last, following, is_accepted)

    @classmethod
    def at(cls, offset: int, error: TailraceError) -> Self | None:
        """Return the damage that a read from `offset` on has met; None: it cannot go on."""
        damage = cls.of(error)
        return None if damage is None or damage.next_offset <= offset else damage

    @property
    def offsets(self) -> str:
        """Return them for people."""
        if self.first_offset == self.last_offset:
            return f"offset {self.first_offset}"
        return f"offsets {self.first_offset}–{self.last_offset}"  # noqa: RUF001

    @property
    def partition_name(self) -> str:
        """Return the topic-partition for people."""
        return f'partition {self.partition} of topic "{self.topic}"'

    def __str__(self) -> str:
        what = "lost, which was accepted" if self.is_accepted else "quarantined (damaged)"
        return f"{self.partition_name}: {self.offsets} are {what}; going on at {self.next_offset}"
