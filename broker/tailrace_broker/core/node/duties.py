"""What a broker owes the ring, seen from the replicated state and from who seems to be alive.

A reconcile pass compares them every `duty_ms` and whenever the state has changed. It remembers
nothing of the pass before: asking twice does no harm, since commands are conditional and carry an
id. What is seen wrongly, or late, is refused: gossip and silence are hints, and the state decides.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tailrace_broker.core.node.applied import AppliedState, Identity
from tailrace_broker.core.node.bootstrap import Bootstrap, spread, voter_count
from tailrace_broker.core.node.events import Health, Recovered
from tailrace_broker.core.node.gossip import Gossip
from tailrace_broker.core.node.reslicing import Reslicing
from tailrace_broker.core.raft.events import ChangeVoters, Send
from tailrace_broker.core.raft.raft import Raft
from tailrace_broker.core.raft.ticks import next_tick_ms
from tailrace_broker.core.ring.copies import copies_to_drop
from tailrace_broker.core.ring.range_commands import greatest_ghosts, without
from tailrace_broker.core.ring.roles import is_elsewhere
from tailrace_broker.model.agreement import Configuration, DiskId
from tailrace_broker.model.commands import Command, Fence, Lead, Lost, Register
from tailrace_broker.model.messages import Follow
from tailrace_broker.model.ring_state import RangeState, Registration, Replica, RingState

FOLLOW_MS = 1000


@dataclass(frozen=True, slots=True)
class ToLeader:
    """Send this to the metadata's leader, if there is one."""

    message: Follow


@dataclass(frozen=True, slots=True)
class ReadState:
    """Ask for the state as it is now, unless that is under way."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Ask for this command, unless the same is under way."""

    command: Command


Duty = ToLeader | Send | ReadState | Submit | ChangeVoters


class Duties:
    """Finds what is due. `wake_at_ms`: when the next pass is.

    `replaces`: the number of the registration that this process replaces; None: it does not know
    the current state yet.
    """

    def __init__(
        self,
        identity: Identity,
        applied: AppliedState,
        raft: Raft,
        gossip: Gossip,
        bootstrap: Bootstrap,
        *,
        duty_ms: int,
        session_ms: int,
        now_ms: int,
    ) -> None:
        self.wake_at_ms = now_ms
        self.replaces: int | None = None
        self._identity = identity
        self._applied = applied
        self._raft = raft
        self._gossip = gossip
        self._bootstrap = bootstrap
        self._duty_ms = duty_ms
        self._session_ms = session_ms
        self._recovered: Recovered | None = None
        self._health = Health()
        # By range with which number damage was found in it; None: in no registration yet.
        self._damaged: dict[int, tuple[int, int] | None] = {}
        self._leads_since_ms = now_ms
        self._next_follow_ms = now_ms
        self._reslicing = Reslicing()

    def begin_pass(self, now_ms: int) -> None:
        """The next one is at the next tick, unless something happens before."""
        self.wake_at_ms = next_tick_ms(now_ms, self._duty_ms)

    def hurry(self, now_ms: int) -> None:
        """Something has changed: the next pass is now."""
        self.wake_at_ms = now_ms

    def recovered(self, recovered: Recovered, now_ms: int) -> None:
        """The logs are there: this broker may register, and lead."""
        self._recovered = recovered
        self.hurry(now_ms)

    def set_health(self, health: Health, now_ms: int) -> None:
        """What this process is fit for has changed."""
        self._health = health
        self.hurry(now_ms)

    def damaged(self, range_id: int, now_ms: int) -> None:
        """The range's logs lack what was committed: the ring is to know."""
        self._damaged[range_id] = self._number_in(range_id)
        self.hurry(now_ms)

    def elected(self, now_ms: int) -> None:
        """This broker leads the metadata from now on."""
        self._leads_since_ms = now_ms
        self.hurry(now_ms)

    def silent(self, now_ms: int) -> set[int]:
        """The other brokers that seem dead; none before this process has listened long enough."""
        state, me = self._applied.state, self._identity.disk.ordinal
        if state is None or not self._gossip.may_suspect(now_ms):
            return set()
        others = state.brokers.keys() - {me}
        return {each for each in others if not self._is_alive(state, each, now_ms)}

    def heard(self, now_ms: int) -> frozenset[int]:
        """The other brokers whose registered process is heard and not fenced: their logs are open.

        A broker that started again says so before it has recovered its logs, and registers after.
        """
        state, gossip = self._applied.state, self._gossip
        brokers = () if state is None else state.brokers.values()
        return frozenset(
            each.ordinal
            for each in brokers
            if each.ordinal != self._identity.disk.ordinal
            and not each.is_fenced
            and gossip.is_process(each.ordinal, each.incarnation, each.boot)
            and gossip.is_beating(each.ordinal, now_ms)
        )

    def due(self, now_ms: int) -> Iterator[Duty]:
        """What is to be asked for, in this order."""
        raft, state, disk = self._raft, self._applied.state, self._identity.disk
        is_fed = raft.is_voter and raft.leader is not None
        if not is_fed and now_ms >= self._next_follow_ms:
            self._next_follow_ms = now_ms + FOLLOW_MS
            yield ToLeader(Follow(raft.term, disk, raft.applied))
        if state is None:
            return
        if self._bootstrap.initial is not None and raft.leader is None:
            yield from spread(self._bootstrap.initial, disk, state)
        if self._applied.registration is None and self.replaces is None:
            yield ReadState()
        yield from map(Submit, [*self._commands(state, now_ms)])
        if raft.is_established:
            voters = wanted_voters(state, raft.configuration)
            if voters is not None:
                yield ChangeVoters(voters)

    def _commands(self, state: RingState, now_ms: int) -> Iterator[Command]:
        raft = self._raft
        if self._recovered is not None:
            yield from self._for_itself(state, self._recovered, now_ms)
        if raft.is_established:
            yield from brokers_to_fence(
                state,
                raft.heard_at_ms,
                me=self._identity.disk.ordinal,
                since_ms=self._leads_since_ms,
                session_ms=self._session_ms,
                now_ms=now_ms,
            )
            yield from copies_to_drop(state)
            resliced = self._reslicing.due(state, now_ms)
            if resliced is not None:
                yield resliced

    def _for_itself(
        self, state: RingState, recovered: Recovered, now_ms: int
    ) -> Iterator[Register | Lost | Lead]:
        """Register, then say what is damaged, then lead; all only when the logs are recovered."""

        def is_alive(ordinal: int) -> bool:
            return self._is_alive(state, ordinal, now_ms)

        mine = self._applied.registration
        if mine is None:
            yield from self._registration(recovered)
            return
        yield from self._losses(state, mine)
        if not mine.is_fenced:
            may_suspect = self._gossip.may_suspect(now_ms)
            wanted = ranges_to_lead(
                state, mine, is_alive, is_fit=self._gossip.is_fit, may_suspect=may_suspect
            )
            yield from (each for each in wanted if self._can_lead(state.ranges[each.range_id]))

    def _is_alive(self, state: RingState, ordinal: int, now_ms: int) -> bool:
        """The process that is registered is heard, and no newer one of that broker."""
        known = state.brokers.get(ordinal)
        is_replaced = known is not None and self._gossip.is_replaced(
            ordinal, known.incarnation, known.boot
        )
        return not is_replaced and self._gossip.is_alive(ordinal, now_ms)

    def _can_lead(self, owner: RangeState) -> bool:
        """The only copy is led whatever happens: at least it is read."""
        is_able = self._health.can_store and owner.id not in self._damaged
        return is_able or len(owner.replicas) == 1

    def _losses(self, state: RingState, mine: Registration) -> Iterator[Lost]:
        """Once for each damage; the only copy stands still where it is damaged, and leads."""
        for range_id, number in list(self._damaged.items()):
            owner = state.ranges.get(range_id)
            now = self._number_in(range_id)
            if number is None:  # found before this registration, which may not have named it
                number = self._damaged[range_id] = now
            is_due = owner is not None and is_elsewhere(owner, mine.ordinal)
            if now is None or number != now or not is_due:
                del self._damaged[range_id]
            else:
                yield Lost(range_id, mine.ordinal, *now)

    def _number_in(self, range_id: int) -> tuple[int, int] | None:
        """What names this process as a replica of the range; None: nothing yet."""
        state, mine = self._applied.state, self._applied.registration
        owner = None if state is None else state.ranges.get(range_id)
        return None if owner is None or mine is None else owner.replica_of(mine).number

    def _registration(self, recovered: Recovered) -> Iterator[Register]:
        """Once the process knows the current state: while it catches up it sees old ones.

        A refusal then says that another process has become this broker since: this one ends.
        """
        if self.replaces is not None:
            (ordinal, incarnation), boot, starts = self._identity
            ends, damaged = recovered.ends, tuple(sorted({*recovered.damaged, *self._damaged}))
            yield Register(ordinal, incarnation, boot, starts, self.replaces, ends, damaged)


def ranges_to_lead(
    state: RingState,
    mine: Registration,
    is_alive: Callable[[int], bool],
    *,
    is_fit: Callable[[int], bool],
    may_suspect: bool,
) -> Iterator[Lead]:
    """Ranges that nobody leads, or somebody who seems dead or is fenced, and this broker should.

    `is_fit`: whom it is worth to wait for, and whether this broker need not wait for all that are.
    `may_suspect` False: this broker has not listened for long enough to say that anybody is dead.
    Of those that may, the first alive in the ring's order does: the natural leader, if it can.
    """
    for each in state.ranges.values():
        if mine.ordinal not in each.replicas or each.is_sealed:
            continue
        leader = None if each.leader is None else each.leader.ordinal
        if leader == mine.ordinal or (
            leader is not None and _is_well(state, leader, is_alive, may_suspect=may_suspect)
        ):
            continue
        if each.epoch == 0 and _waits_for_natural_leader(state, each, mine):
            continue
        candidates = _candidates(state, each, mine, lambda o: is_alive(o) and is_fit(o))
        able = [o for o in each.replicas if o in candidates and o != leader]
        # The first of them does; who is not fit, only where it is the only one.
        leading = able[:1] if is_fit(mine.ordinal) else able
        if leading != [mine.ordinal] or not _is_answered(state, each, mine.ordinal, is_alive):
            continue
        gone = () if leader is None else (leader,)
        yield Lead(each.id, each.epoch, mine.ordinal, mine.number, gone)


def brokers_to_fence(
    state: RingState,
    heard_at_ms: Mapping[DiskId, int],
    *,
    me: int,
    since_ms: int,
    session_ms: int,
    now_ms: int,
) -> Iterator[Fence]:
    """As the metadata's leader since `since_ms`: who is silent too long, and who is back."""
    for each in state.brokers.values():
        if each.ordinal == me:
            if each.is_fenced:
                yield Fence(me, each.number, is_fenced=False)
            continue
        heard_ms = heard_at_ms.get(DiskId(each.ordinal, each.incarnation), since_ms)
        silent_ms = now_ms - max(heard_ms, since_ms)
        if not each.is_fenced and silent_ms > session_ms:
            yield Fence(each.ordinal, each.number)
        elif each.is_fenced and heard_ms > since_ms and now_ms - heard_ms < session_ms // 2:
            yield Fence(each.ordinal, each.number, is_fenced=False)


def wanted_voters(state: RingState, configuration: Configuration) -> tuple[DiskId, ...] | None:
    """The disks that are to vote now; None: they do, or their change is under way."""
    if configuration.is_joint:
        return None
    present = {each.ordinal: each for each in configuration.voters}
    for ordinal in range(voter_count(state.broker_count)):
        found = state.brokers.get(ordinal)
        if found is not None:
            present[ordinal] = DiskId(ordinal, found.incarnation)
    wanted = tuple(present[o] for o in range(voter_count(state.broker_count)) if o in present)
    return None if wanted == configuration.voters else wanted


def next_voters(state: RingState | None, configuration: Configuration) -> tuple[DiskId, ...]:
    """Who votes when others vote now, also before their change has begun; empty: nobody else."""
    if state is None:
        return configuration.next_voters
    return configuration.next_voters or wanted_voters(state, configuration) or ()


def takeovers(before: RingState | None, after: RingState) -> Iterator[Replica]:
    """The leaders that have lost a range to another broker, which takes them for dead.

    Who could have left the ISR and stays in it has handed over.
    """
    if before is None or before.ranges is after.ranges:
        return
    for range_id, now in after.ranges.items():
        was = before.ranges.get(range_id)
        if was is None or was is now or was.leader is None or now.leader is None:
            continue
        is_other = was.leader.ordinal != now.leader.ordinal
        if is_other and without(now.isr, [was.leader.ordinal], after.floor) == now.isr:
            yield was.leader


def _is_well(
    state: RingState, ordinal: int, is_alive: Callable[[int], bool], *, may_suspect: bool
) -> bool:
    found = state.brokers.get(ordinal)
    return found is not None and not found.is_fenced and (not may_suspect or is_alive(ordinal))


def _waits_for_natural_leader(state: RingState, found: RangeState, mine: Registration) -> bool:
    """A range that is new: who should lead it may just not have been heard of yet."""
    natural = state.brokers.get(found.natural_leader)
    if natural is None or natural.is_fenced or mine.ordinal == natural.ordinal:
        return False
    return found.replica_of(natural) in found.isr


def _candidates(
    state: RingState, found: RangeState, mine: Registration, is_alive: Callable[[int], bool]
) -> set[int]:
    """Brokers whose lead the state would accept, as far as they seem alive."""
    able = {o for o in greatest_ghosts(state, found) if o == mine.ordinal or is_alive(o)}
    for replica in found.isr:
        registered = state.brokers.get(replica.ordinal)
        if registered is None or registered.is_fenced:
            continue
        is_here = replica.ordinal == mine.ordinal or is_alive(replica.ordinal)
        if found.replica_of(registered) == replica and is_here:
            able.add(replica.ordinal)
    return able


def _is_answered(
    state: RingState, found: RangeState, ordinal: int, is_alive: Callable[[int], bool]
) -> bool:
    """Another replica is there, if the range has more than one: alone, nothing could be kept."""
    others = [each for each in found.replicas if each != ordinal]
    return not others or any(map(is_alive, others))
