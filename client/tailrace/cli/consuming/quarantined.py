"""What a reader passes over: offsets that a broker has quarantined, that were given up, or that
retention has removed since the reader began.
"""

from typing import NamedTuple, Self

from tailrace.errors import OffsetOutOfRangeError, ProblemError, TailraceError

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
        return _offsets(self.first_offset, self.last_offset)

    @property
    def partition_name(self) -> str:
        """Return the topic-partition for people."""
        return _partition_name(self.topic, self.partition)

    def __str__(self) -> str:
        what = "lost, which was accepted" if self.is_accepted else "quarantined (damaged)"
        return f"{self.partition_name}: {self.offsets} are {what}; going on at {self.next_offset}"


class Removed(NamedTuple):
    """Offsets that retention has removed before they were read.

    It goes on at `next_offset`, or not at all when that is `end`.
    """

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    end: int | None

    @classmethod
    def at(cls, key: tuple[str, int], offset: int, end: int | None, error: object) -> Self | None:
        """Return what a read from `offset` up to `end` has met; None: the error differs."""
        if not isinstance(error, OffsetOutOfRangeError) or error.log_start <= offset:
            return None
        following = error.log_start if end is None else min(error.log_start, end)
        return cls(*key, offset, following, end)

    def __str__(self) -> str:
        offsets = _offsets(self.first_offset, self.next_offset - 1)
        name = _partition_name(self.topic, self.partition)
        removed = f"{name}: {offsets} were removed by retention before they were read"
        return (
            removed
            if self.next_offset == self.end
            else f"{removed}; going on at {self.next_offset}"
        )


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first}–{last}"  # noqa: RUF001


def _partition_name(topic: str, partition: int) -> str:
    return f'partition {partition} of topic "{topic}"'
