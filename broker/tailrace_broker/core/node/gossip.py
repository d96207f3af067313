"""Gossip says who seems to be alive: each broker counts heartbeats and sends those that it knows.

A machine. Every `interval_ms` a broker sends a digest to its two neighbours in the ring and to one
other broker, drawn each time. A digest holds the sender's own hint and those that grew last,
as many as fit. A broker is alive while its beats grow, as seen from here; when its connection is
reset it is not, until a newer beat is heard. Gossip only hints: it decides nothing, the metadata
does.

A disk is known by its incarnation, a process on it by its boot. Of one disk the greater
(boot, beat) is the newer. Another disk under an ordinal, or an older boot of the same (a disk that
was restored), is believed when the known one is silent; and nothing twice, so that hints which only
go in circles keep nobody alive.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.codec.peer import FRAME_HEADER, encoded_bytes
from tailrace_broker.core.raft.events import Send
from tailrace_broker.core.raft.ticks import TICK_MS, next_tick_ms
from tailrace_broker.core.ring.arithmetic import UNITS, ring_order
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import Digest, Hint

# A digest fits into one packet, header and all.
DIGEST_BYTES_MAX = 1400
# What the array around many hints takes more than the one around none.
ARRAY_BYTES = 2
# Whoever is quick to take over from a broker that comes and goes waits longer the next time.
SUSPICION_MS_MAX = 8000
TAKEOVER_MEMORY_MS = 300_000
TAKEOVERS_REMEMBERED = 16
# The ranges of a broker that fails are taken over one by one.
INCIDENT_MS = 5000
# Processes that were an ordinal once: so many of each are not believed twice.
PAST_PROCESSES = 8
# Two neighbours and another one.
PEERS = 3
# Brokers outside of the ring that are answered in an interval.
CALLERS_MAX = 16
# Whom a broker asks that does not know the ring: those that found it.
FOUNDERS = range(3)


class GossipTiming(NamedTuple):
    """`suspicion_ms`: a broker that is not heard counts as alive for this long."""

    interval_ms: int = TICK_MS
    suspicion_ms: int = 1000


class Gossip:
    """One broker's view.

    `wake_at_ms`: when `wake` is due. `rules` counts what was needed.
    """

    def __init__(
        self,
        me: DiskId,
        boot: int,
        timing: GossipTiming,
        generator: Generator,
        now_ms: int,
        rules: Counter[str],
    ) -> None:
        self.wake_at_ms = now_ms
        self._me = me
        self._timing = timing
        self._generator = generator
        self._rules = rules
        self._broker_count: int | None = None
        self._order: list[int] = []  # the other brokers, clockwise from here
        self._between: dict[int, int] = {}  # how many hand on what these say
        self._hops_max = 0
        # Beats go with the clock, which is above all those of a process before: should it have had
        # the same boot, on a disk that was restored since. The first digest says one more.
        beat = now_ms // timing.interval_ms - 1
        self._hints = {me.ordinal: Hint(me.ordinal, me.incarnation, boot, beat, height=0)}
        self._term = -1
        self._leader: int | None = None
        # On the clock of `_listened_ms`.
        self._grew_ms: dict[int, int] = {}
        # By ordinal, the last beat of each (incarnation, boot) that it is no more.
        self._past: dict[int, dict[tuple[UUID, int], int]] = {}
        self._takeovers_ms: dict[int, deque[int]] = {}
        self._last_incident: dict[int, tuple[int, int]] = {}  # registration, and when it began
        self._spoke_ms: dict[int, int] = {}
        self._suspects_from_ms = now_ms + timing.suspicion_ms
        self._callers: set[int] = set()
        self._seen_ms = now_ms
        self._deaf_ms = 0

    # --- views ---

    @property
    def hints(self) -> Mapping[int, Hint]:
        """By ordinal, whether alive or not."""
        return self._hints

    def is_alive(self, ordinal: int, now_ms: int) -> bool:
        """Its beat or boot grew within its suspicion time, and its connection was not reset since.

        Of a broker that was never heard, or only once and from others: no. Time in which this
        process itself stood still does not count against anybody.
        """
        if ordinal == self._me.ordinal:
            return True
        return self._silent_ms(ordinal, now_ms) < self.suspicion_ms(ordinal, now_ms)

    def is_beating(self, ordinal: int, now_ms: int) -> bool:
        """Its beat has just grown, however patient others are with it."""
        is_me = ordinal == self._me.ordinal
        return is_me or self._silent_ms(ordinal, now_ms) < self._undamped_ms(ordinal)

    def is_fit(self, ordinal: int) -> bool:
        """As far as is known: the broker may lead."""
        hint = self._hints.get(ordinal)
        return hint is None or hint.is_fit

    def may_suspect(self, now_ms: int) -> bool:
        """This process has listened long enough, since its start and since it last stood still."""
        return now_ms >= self._suspects_from_ms

    def is_heard_itself(self, ordinal: int, now_ms: int) -> bool:
        """The broker has spoken to this very process lately, and was not unreachable since."""
        spoke_ms = self._spoke_ms.get(ordinal)
        return spoke_ms is not None and now_ms - spoke_ms < self._timing.suspicion_ms

    def is_replaced(self, ordinal: int, incarnation: UUID, boot: int) -> bool:
        """A newer process than this one was heard since, or one on another disk.

        So who recovers its logs does not pass for the process that it was.
        """
        hint = self._hints.get(ordinal)
        return hint is not None and (hint.incarnation != incarnation or hint.boot > boot)

    def is_process(self, ordinal: int, incarnation: UUID, boot: int) -> bool:
        """This very process was the last to be heard as that broker."""
        hint = self._hints.get(ordinal)
        return hint is not None and hint[1:3] == (incarnation, boot)

    def suspicion_ms(self, ordinal: int, now_ms: int) -> int:
        """For how long the broker may be silent: doubled by each of its last takeovers.

        Whose beats come through others is given the time that they need: one that came on a short
        way is followed by none that is newer until those on the long way have caught up.
        """
        takeovers = self._takeovers_ms.get(ordinal, ())
        count = sum(now_ms - at_ms < TAKEOVER_MEMORY_MS for at_ms in takeovers)
        suspicion_ms = self._timing.suspicion_ms
        damped_ms = max(suspicion_ms, min(suspicion_ms << count, SUSPICION_MS_MAX))
        return damped_ms - suspicion_ms + self._undamped_ms(ordinal)

    def _undamped_ms(self, ordinal: int) -> int:
        hops_ms = self._between.get(ordinal, self._hops_max) * self._timing.interval_ms
        return self._timing.suspicion_ms + hops_ms

    def _silent_ms(self, ordinal: int, now_ms: int) -> float:
        """How long another broker's beat has not grown, as far as this process listened."""
        grew_ms = self._grew_ms.get(ordinal)
        if grew_ms is None:
            return math.inf
        return min(now_ms, self._seen_ms + 2 * self._timing.interval_ms) - self._deaf_ms - grew_ms

    def leader_hint(self) -> tuple[int, int] | None:
        """The newest term with a known leader, and that leader."""
        return None if self._leader is None else (self._term, self._leader)

    def validate(self) -> None:
        """What is always true; for the simulator."""
        mine = self._hints[self._me.ordinal]
        assert mine.incarnation == self._me.incarnation
        assert self._me.ordinal not in self._grew_ms
        assert self._me.ordinal not in self._order
        assert self._grew_ms.keys() <= self._hints.keys()
        assert all(ordinal == hint.ordinal for ordinal, hint in self._hints.items())
        for ordinal, past in self._past.items():
            assert self._hints[ordinal][1:3] not in past
            assert len(past) <= PAST_PROCESSES
        assert len(self._callers) <= CALLERS_MAX

    # --- what it learns from this broker and others ---

    def set_ring(self, broker_count: int) -> None:
        """The ring has so many brokers. O(n) when that is another number than before."""
        if broker_count == self._broker_count:
            return
        self._broker_count = broker_count
        order = ring_order(broker_count)
        # A broker that is not in the ring, not yet or no more, stands before its first.
        here = order.index(self._me.ordinal) if self._me.ordinal < broker_count else None
        self._order = order if here is None else order[here + 1 :] + order[:here]
        # Along the ring, or by the brokers that are drawn: those reach all in so many intervals.
        self._hops_max = broker_count.bit_length()
        last = len(self._order) - 1
        self._between = {
            ordinal: min(index, last - index, self._hops_max)
            for index, ordinal in enumerate(self._order)
        }

    def set_fit(self, *, is_fit: bool) -> None:
        """Whether this broker may lead: others do not wait for it else."""
        mine = self._hints[self._me.ordinal]
        self._hints[self._me.ordinal] = mine._replace(is_fit=is_fit)

    def set_self(self, *, height: int, term: int, leader: int | None) -> None:
        """How far this broker has applied, and whom it follows."""
        mine = self._hints[self._me.ordinal]
        self._hints[self._me.ordinal] = mine._replace(height=height)
        self._learn_leader(term, leader)

    def heard(self, digest: Digest, now_ms: int) -> None:
        """Another broker's digest, of any age. O(its hints)."""
        listened_ms = self._listen(now_ms)
        sender = digest.sender.ordinal
        if sender == self._me.ordinal:
            return  # another process that is this broker, or was
        self._learn_leader(digest.term, digest.leader)
        is_outside = self._broker_count is None or sender >= self._broker_count
        if is_outside and len(self._callers) < CALLERS_MAX:
            self._callers.add(sender)
        # What grew last for the sender comes first, and is to be last here.
        for hint in reversed(digest.hints):
            known = self._hints.get(hint.ordinal)
            if known is not None and known[1:3] == hint[1:3]:
                if hint.beat > known.beat:
                    self._grow(hint, listened_ms)
            else:
                self._meet(hint, known, is_direct=hint.ordinal == sender, now_ms=now_ms)

    def spoke(self, ordinal: int, now_ms: int) -> None:
        """The broker has sent this process a message, of whatever kind."""
        self._spoke_ms[ordinal] = now_ms

    def unreachable(self, ordinal: int, now_ms: int) -> None:
        """It takes no connection: it is not alive, until a newer beat is heard."""
        self._listen(now_ms)
        self._spoke_ms.pop(ordinal, None)
        if self._grew_ms.pop(ordinal, None) is not None:
            self._rules["gossip.reset"] += 1

    def took_over(self, ordinal: int, registration: int, now_ms: int) -> None:
        """Another broker leads now what this one did: it is not to happen for every hiccup.

        However many ranges it led, it has failed once. Whoever is heard, and says that it is not
        fit, has not failed: it has left.
        """
        if self.is_beating(ordinal, now_ms) and not self.is_fit(ordinal):
            self._rules["gossip.left"] += 1
            return
        known, began_ms = self._last_incident.get(ordinal, (-1, 0))
        if known == registration and now_ms - began_ms < INCIDENT_MS:
            self._rules["gossip.same_incident"] += 1
            return
        self._last_incident[ordinal] = registration, now_ms
        takeovers_ms = self._takeovers_ms.get(ordinal)
        if takeovers_ms is None:
            takeovers_ms = self._takeovers_ms[ordinal] = deque(maxlen=TAKEOVERS_REMEMBERED)
        takeovers_ms.append(now_ms)
        self._rules["gossip.damped"] += 1

    # --- what it says ---

    def wake(self, now_ms: int) -> list[Send]:
        """The digests that are due; none before `wake_at_ms`. O(brokers that are sent to)."""
        self._listen(now_ms)
        if now_ms < self.wake_at_ms:
            return []
        self.wake_at_ms = next_tick_ms(now_ms, self._timing.interval_ms)
        mine = self._hints.pop(self._me.ordinal)
        self._hints[self._me.ordinal] = mine._replace(beat=mine.beat + 1)
        peers = self._peers()
        if not peers:
            return []
        digest = self._digest()
        return [Send(peer, digest) for peer in peers]

    def _peers(self) -> list[int]:
        """The neighbours, another one, and who called from outside of the ring."""
        order, callers = self._order, self._callers
        if self._broker_count is None:
            peers = [ordinal for ordinal in FOUNDERS if ordinal != self._me.ordinal]
        elif len(order) <= PEERS:
            peers = list(order)
        else:
            between = self._generator.randrange(1, len(order) - 1)
            peers = [order[0], order[-1], order[between]]
        if callers:
            peers += sorted(callers.difference(peers))
            callers.clear()
        return peers

    def _digest(self) -> Digest:
        """The own hint, then those that grew last, as many as fit."""
        empty = Digest(self._me, (), self._term, self._leader)
        free_bytes = DIGEST_BYTES_MAX - FRAME_HEADER.size - encoded_bytes(empty) - ARRAY_BYTES
        hints: list[Hint] = []
        for hint in reversed(self._hints.values()):
            free_bytes -= encoded_bytes(hint)
            if free_bytes < 0:
                self._rules["gossip.full"] += 1
                break
            hints.append(hint)
        return Digest(self._me, tuple(hints), self._term, self._leader)

    # --- what it learns ---

    def _listen(self, now_ms: int) -> int:
        """The time for which this process has listened: without what it stood still."""
        gap_ms = now_ms - self._seen_ms
        if gap_ms > 2 * self._timing.interval_ms:
            self._deaf_ms += gap_ms - self._timing.interval_ms
            self._suspects_from_ms = now_ms + self._timing.suspicion_ms
            self._rules["gossip.stood_still"] += 1
        self._seen_ms = max(self._seen_ms, now_ms)
        return now_ms - self._deaf_ms

    def _grow(self, hint: Hint, listened_ms: int) -> None:
        if hint.ordinal == self._me.ordinal:
            return
        del self._hints[hint.ordinal]
        self._hints[hint.ordinal] = hint
        self._grew_ms[hint.ordinal] = listened_ms

    def _meet(self, hint: Hint, known: Hint | None, *, is_direct: bool, now_ms: int) -> None:
        """A process that is not the one known under its ordinal."""
        ordinal = hint.ordinal
        if not 0 <= ordinal < UNITS or ordinal == self._me.ordinal:
            return
        listened_ms = now_ms - self._deaf_ms
        if known is None:
            # From others it may be old: it is alive when it grows.
            self._hints[ordinal] = hint
            if is_direct:
                self._grew_ms[ordinal] = listened_ms
            return
        is_next_boot = hint.incarnation == known.incarnation and hint.boot > known.boot
        if not is_next_boot and self.is_alive(ordinal, now_ms):
            self._rules["gossip.disputed"] += 1
            return
        past = self._past.setdefault(ordinal, {})
        if hint.beat <= past.get(hint[1:3], -1):
            self._rules["gossip.past"] += 1
            return
        past.pop(hint[1:3], None)
        past[known[1:3]] = known.beat
        if len(past) > PAST_PROCESSES:
            del past[next(iter(past))]
        self._rules["gossip.replaced"] += 1
        if is_next_boot or is_direct:
            self._grow(hint, listened_ms)
        else:
            self._hints[ordinal] = hint

    def _learn_leader(self, term: int, leader: int | None) -> None:
        if leader is not None and 0 <= leader < UNITS and term >= self._term:
            self._term, self._leader = term, leader
