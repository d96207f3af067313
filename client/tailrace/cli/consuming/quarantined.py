"""Damage that a reader meets: offsets that a broker has quarantined."""

from typing import NamedTuple, Self

from tailrace.errors import ProblemError, TailraceError

_PROBLEM_TYPE = "corrupt-partition"  # docs/protocol.md, "Problems"


class Quarantined(NamedTuple):
    """Offsets of a partition that cannot be read; it goes on at `next_offset`."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    next_offset: int

    @classmethod
    def of(cls, error: TailraceError) -> Self | None:
        """Return what the error names; None: the error differs, or nothing follows."""
        if not isinstance(error, ProblemError):
            return None
        names = ("topic", "partition", "firstOffset", "lastOffset", "nextOffset")
        topic, *numbers = (error.members.get(name) for name in names)
        if error.type != _PROBLEM_TYPE or not all(isinstance(number, int) for number in numbers):
            return None
        return cls(str(topic), *(number for number in numbers if isinstance(number, int)))

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
        return (
            f"{self.partition_name}: {self.offsets} are quarantined (damaged); going on at "
            f"{self.next_offset}"
        )
