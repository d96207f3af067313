"""How far one other disk has got with the leader's chain, and what is on its way there."""

from collections import deque

from tailrace_broker.model.agreement import NOTHING, BlockId, DiskId, Snapshot

IN_FLIGHT_BYTES_MAX = 1024 * 1024


class VoterProgress:
    """Of a follower or learner. `matched`: durable there, and on the leader's chain.

    `sent`: the block up to which all has been sent, perhaps in vain. Refusals of what was sent
    before `reset_round` are old news. `snapshot`: it is being sent, `position` is next.
    `seen_at_ms`: it has said anything; `heard_at_ms`: it has answered.
    """

    __slots__ = (
        "_in_flight",
        "disk",
        "heard_at_ms",
        "in_flight_bytes",
        "is_replaced",
        "matched",
        "position",
        "reset_round",
        "round",
        "seen_at_ms",
        "sent",
        "snapshot",
    )

    def __init__(self, disk: DiskId, sent: BlockId, heard_at_ms: int) -> None:
        self.disk = disk
        self.matched = NOTHING
        self.sent = sent
        self.heard_at_ms = self.seen_at_ms = heard_at_ms
        self.round = 0  # the newest that it has answered
        self.reset_round = 0
        self.snapshot: Snapshot | None = None
        self.position = 0
        self.is_replaced = False  # another disk speaks for this broker now
        self.in_flight_bytes = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # height of the last block, bytes

    @property
    def has_room(self) -> bool:
        """More may be sent before it answers."""
        return self.in_flight_bytes < IN_FLIGHT_BYTES_MAX

    def send(self, last: BlockId, size_bytes: int) -> None:
        """Blocks up to `last` are on their way."""
        self.sent = last
        self._in_flight.append((last.height, size_bytes))
        self.in_flight_bytes += size_bytes

    def match(self, block_id: BlockId) -> None:
        """All up to there is durable; an old answer changes nothing."""
        if block_id.height <= self.matched.height:
            return
        self.matched = block_id
        if self.sent.height < block_id.height:
            self.sent = block_id
        while self._in_flight and self._in_flight[0][0] <= block_id.height:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    def go_back(self, block_id: BlockId) -> None:
        """Go back: all that was sent after it is lost."""
        self.sent = block_id
        self._in_flight.clear()
        self.in_flight_bytes = 0
