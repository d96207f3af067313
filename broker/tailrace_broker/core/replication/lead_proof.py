"""Whether a leader is still one: a round of frames that other replicas answer in its epoch. Pure.

Who answers has not applied a newer epoch, and whoever leads in a newer one acknowledges nothing
without another replica that has (of two or three). So when a majority of the replicas, this leader
included, is in its epoch after somebody asked, nobody had acknowledged what it does not have.
"""

from collections.abc import Iterable

from tailrace_broker.core.replication.progress import Progress


class LeadProof:
    """`round`: the last one that was asked for; it is in all heartbeats from then on.

    At once only as many followers are asked as must answer: a round costs two frames each.
    """

    __slots__ = ("_is_wanted", "round")

    def __init__(self) -> None:
        self.round = 0
        self._is_wanted = False

    def ask(self, followers: Iterable[Progress], replica_count: int) -> list[Progress]:
        """Begin a round; return whom to ask at once, of those that follow: who was heard last."""
        self.round += 1
        self._is_wanted = True
        following = [each for each in followers if each.is_following]
        following.sort(key=lambda each: -each.heard_ms)
        return following[: replica_count // 2]

    def is_given(self, answered: Iterable[int], replica_count: int) -> bool:
        """Whether the round is over, for the first time; `answered`: by follower its last round."""
        is_answered = sum(each == self.round for each in answered) >= replica_count // 2
        if not (self._is_wanted and is_answered):
            return False
        self._is_wanted = False
        return True
