"""What a produce has stored in a partition; an error names it beside what it has not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Produced:
    """Records that are stored: offsets [`offset`, `offset + count`) of `partition`.

    `duplicate`: since an earlier request of this producer and sequence. `topic_created`: the
    request that stored them created the topic.
    """

    partition: int
    offset: int
    count: int
    durability: str
    copies: int
    duplicate: bool = False
    topic_created: bool = False
