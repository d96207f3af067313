"""The replicated state of a ring, and its disks, which lose data; what must hold.

The commands and what they make of the state are the real ones. Commands arrive late, doubled, in
another order, or not at all. Disks are sets: which have all that was acknowledged of a range.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.ring import commands as ring_commands
from tailrace_broker.core.ring import copies, registrations
from tailrace_broker.core.ring.commands import initial_state
from tailrace_broker.core.ring.topics import open_ranges, topic_of
from tailrace_broker.model.commands import (
    AbortStep,
    AcceptLoss,
    AlterTopic,
    BeginStep,
    ChangeIsr,
    Command,
    Completed,
    CreateTopic,
    DeleteTopic,
    DropCopy,
    Fence,
    Lead,
    Lost,
    PurgeTopics,
    Register,
    RestoreTopic,
    Retire,
    Sealed,
    Stamped,
)
from tailrace_broker.model.ring_state import (
    Loss,
    RangeState,
    Registration,
    Replica,
    RingState,
    Start,
)
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tests.support.ring.checks import check_state

ORDINALS = range(6)
NAMES = ("orders", "flights", "__groups")
LOSSES: tuple[Loss, ...] = ("clean", "process", "process", "power", "power", "disk")


@dataclass(slots=True)
class Disk:
    """A broker's disk. `starts` since it was empty; the last one is the process that runs."""

    ordinal: int
    incarnation: UUID
    starts: list[Start]
    boot: int = 1


@dataclass(slots=True)
class Scenario:
    """One ring; `happen` goes on with it, and checks what it has become.

    `also`: what happens beside. `size`: how many brokers, and how many copies; None: by chance.
    """

    chance: Random
    also: "Happening | None" = None
    size: tuple[int, int] | None = None
    state: RingState = field(init=False)
    disks: dict[int, Disk] = field(init=False)
    sent: list[Stamped] = field(default_factory=list)  # ever
    waiting: list[Stamped] = field(default_factory=list)  # will arrive, in whatever order
    applied: Counter[str] = field(default_factory=Counter)
    # Who has all acknowledged events of a range, but for those of some topics, by (range, ordinal).
    whole: dict[int, set[int]] = field(default_factory=dict)
    lacking: dict[tuple[int, int], set[UUID]] = field(default_factory=dict)
    pending: dict[int, list[ChangeIsr]] = field(default_factory=dict)
    written_since: dict[int, set[UUID]] = field(default_factory=dict)  # by ordinal, topic ids
    ends: dict[tuple[UUID, int], int] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)  # range: for which step
    leaders: dict[tuple[int, int], Replica] = field(default_factory=dict)
    seen: dict[tuple[UUID, int], Partition] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    copying: Random = field(init=False)
    beside: Random = field(init=False)
    late_copies: list[Stamped] = field(default_factory=list)  # ever said of copies

    def __post_init__(self) -> None:
        first, second, *_ = self.chance.getstate()[1]
        self.copying, self.beside = Random(first), Random(second)
        self.disks = {ordinal: self._new_disk(ordinal) for ordinal in ORDINALS}
        drawn = self.chance.randint(1, 4), self.chance.randint(1, 3)
        count, factor = self.size or drawn
        founders = [
            Registration(each, 1, disk.incarnation, disk.boot, disk.starts[-1].id, "disk")
            for each, disk in self.disks.items()
            if each < count
        ]
        self.state = initial_state(self._id(), count, factor, founders)
        self.numbers = dict.fromkeys(range(count), 1)
        self._look(self.state)
        check_state(self.state)

    # --- what happens ---

    def happen(self) -> None:
        """Something, then what follows is checked."""
        actions = (
            (self._arrive, 30),
            (self._append, 12),
            (self._take_over, 20),
            (self._restart, 2),
            (self._register, 10),
            (self._change_isr, 10),
            (self._seal, 10),
            (self._change_topic, 6),
            (self._begin_step, 4),
            (self._arrive_again, 3),
            (self._other_command, 3),
        )
        chosen = self.chance.choices(actions, [weight for _, weight in actions])
        chosen[0][0]()
        self._happen_to_copies()
        if self.also is not None:
            self.also(self, self.beside)

    def _arrive(self) -> None:
        if self.waiting:
            index = self.chance.randrange(len(self.waiting))
            if self.chance.random() < 0.7:  # mostly in their order
                index = 0
            self.apply_command(self.waiting.pop(index))

    def _arrive_again(self) -> None:
        if self.sent:
            self.apply_command(self.chance.choice(self.sent))

    def _append(self) -> None:
        """An event is acknowledged: every member, and every one to be, has it."""
        led = self.chance.choice(open_ranges(self.state))
        if led.id in self.stopped or led.leader is None or not self._runs(led.leader):
            return
        members = {each.ordinal for each in led.isr} | self._pending_members(led)
        if not all(self._is_registered(member) for member in members):
            return
        if any(each.is_ghost for each in led.isr):
            return  # it would have to catch up first, and be a ghost no more
        self.whole[led.id] &= members
        for topic in self.state.topics.values():
            for slices in topic.slices:
                if slices.range_id == led.id:
                    index = self.chance.randrange(len(slices.starts))
                    place = topic.id, slices.first_partition + index
                    self.ends[place] = self._end(place) + 1

    def _take_over(self) -> None:
        led = self.chance.choice(open_ranges(self.state))
        if led.leader is not None and self._runs(led.leader) and self.chance.random() < 0.8:
            return
        ordinal = self.chance.choice(led.replicas)
        gone = [replica for replica in led.replicas if self.chance.random() < 0.2]
        number = self._number(ordinal) - (self.chance.random() < 0.1)
        epoch = led.epoch - (self.chance.random() < 0.1)
        self._send(Lead(led.id, epoch, ordinal, number, tuple(gone)))

    def _restart(self) -> None:
        ordinal, loss = self.chance.choice(ORDINALS), self.chance.choice(LOSSES)
        is_restored = loss == "disk" and self.chance.random() >= 0.5
        self.restart(ordinal, loss, is_restored=is_restored)

    def restart(self, ordinal: int, loss: Loss, *, is_restored: bool = False) -> None:
        """The process dies, and perhaps more than that; another runs, which is not registered."""
        disk = self.disks[ordinal]
        self._lose(ordinal, loss)
        if loss == "disk" and not is_restored:
            self.disks[ordinal] = self._new_disk(ordinal)
            return
        if is_restored:  # a copy of before it was registered, with the starts of then
            broker = self.state.brokers.get(ordinal)
            known = [
                i for i, start in enumerate(disk.starts) if broker and start.id == broker.start
            ]
            disk.starts = disk.starts[: self.chance.randint(0, known[0]) if known else 0]
            loss = "process"
        disk.boot += 1
        disk.starts = [*disk.starts, Start(self._id(), loss)]

    def _lose(self, ordinal: int, loss: Loss) -> None:
        deleted = [each.topic for each in self.state.deleted.values()]
        written = {
            (slices.range_id, topic.id)
            for topic in (*self.state.topics.values(), *deleted)
            if topic.id in self.written_since.get(ordinal, ())
            for slices in topic.slices
        }
        for range_ in self.state.ranges.values():
            if loss == "disk":
                self.whole[range_.id].discard(ordinal)
            elif range_.is_sealed:
                continue  # it was on the disk before it was sealed, or before it was whole
            elif loss == "power" and len(range_.isr) > 1:
                self.lacking.setdefault((range_.id, ordinal), set()).update(
                    topic_id for range_id, topic_id in written if range_id == range_.id
                )

    def _register(self) -> None:
        disk = self.chance.choice(list(self.disks.values()))
        if self._is_registered(disk.ordinal) and self.chance.random() < 0.8:
            return
        starts = disk.starts
        broker = self.state.brokers.get(disk.ordinal)
        if broker is not None:  # back to the last one that is known to be registered
            known = [i for i, start in enumerate(starts) if start.id == broker.start]
            starts = starts[self.chance.randint(0, known[0]) if known else 0 :]
        seen = registrations.last_registration(self.state, disk.ordinal)
        self._send(Register(disk.ordinal, disk.incarnation, disk.boot, tuple(starts), seen))

    def _change_isr(self) -> None:
        """Of a leader: some have caught up, some lag."""
        led = self.chance.choice(open_ranges(self.state))
        if led.leader is None or not self._runs(led.leader):
            return
        members = {each.ordinal: each for each in led.isr}
        for ordinal in led.replicas:
            if ordinal == led.leader.ordinal:
                continue
            if self.chance.random() < 0.1:
                members.pop(ordinal, None)
            elif self._is_registered(ordinal) and self._has_all(led.id, led.leader.ordinal):
                self._catch_up(led.id, ordinal)
                members[ordinal] = led.replica_of(self.state.brokers[ordinal])
        version = led.version - (self.chance.random() < 0.1)
        asked = ChangeIsr(led.id, led.epoch, version, tuple(members.values()))
        self.pending.setdefault(led.id, []).append(asked)
        self._send(asked)

    def _begin_step(self) -> None:
        kind = self.chance.choice(("grow", "grow", "shrink"))
        count = self.state.broker_count
        if kind == "grow" and count >= len(ORDINALS):
            return
        self._send(BeginStep("grow" if kind == "grow" else "shrink", count))

    def _seal(self) -> None:
        """A leader stops, and reports its ends."""
        step = self.state.step
        if step is None:
            return
        reported = self.state.ranges[self.chance.choice(step.parents)]
        if reported.leader is None or not self._runs(reported.leader):
            return
        self.stopped[reported.id] = step.id
        ends = {
            topic.id: tuple(
                self._end((topic.id, slices.first_partition + index))
                for index in range(len(slices.starts))
            )
            for topic in self.state.topics.values()
            for slices in topic.slices
            if slices.range_id == reported.id
        }
        prepared = tuple(
            Replica(broker.ordinal, broker.number)
            for broker in self.state.brokers.values()
            if self.chance.random() < 0.95
        )
        is_late = self.chance.random() < 0.25
        self._send(Sealed(step.id, reported.id, reported.epoch, ends, prepared), is_late=is_late)
        if is_late:
            self._send(AbortStep(step.id))

    def _change_topic(self) -> None:
        name = self.chance.choice(NAMES)
        durability = "fsync" if self.chance.random() < 0.6 else "written"
        settings = TopicSettings(
            partitions_per_range=self.chance.randint(1, 3),
            durability="fsync" if durability == "fsync" else "written",
        )
        gone = self.chance.choice([*self.state.deleted, UUID(int=1)])
        deleted_us = self.state.deleted[gone].deleted_us if gone in self.state.deleted else 0
        self._send(
            self.chance.choice(
                (
                    CreateTopic(name, self._id(), settings),
                    CreateTopic(name, self._id(), settings),
                    AlterTopic(name, {"durability": durability}),
                    DeleteTopic(name, self.chance.randrange(2**40)),
                    RestoreTopic(gone, self.chance.choice((None, "restored"))),
                    DeleteTopic("restored", 1),
                    PurgeTopics({gone: deleted_us}),
                )
            )
        )

    def _other_command(self) -> None:
        led = self.chance.choice(list(self.state.ranges.values()))
        ordinal = self.chance.choice(ORDINALS)
        number = self._number(ordinal)
        self._send(
            self.chance.choice(
                (
                    Fence(ordinal, number, is_fenced=self.chance.random() < 0.3),
                    Fence(ordinal, number, is_fenced=False),
                    AcceptLoss(led.id, led.epoch, ordinal, number),
                    Retire(ordinal, number, accept_loss=self.chance.random() < 0.5),
                )
            )
        )

    # --- copies of sealed ranges ---

    def _happen_to_copies(self) -> None:
        """Sometimes something; drawn apart, so that the rest of a scenario stays the same."""
        kind = self.copying.random()
        if kind < 0.08:
            self._copy_sealed()
        elif kind < 0.12:
            self._drop_copy()
        elif kind < 0.15:
            self._find_damage()
        elif kind < 0.2 and self.late_copies:
            self.apply_command(self.copying.choice(self.late_copies))

    def _copy_sealed(self) -> None:
        """A broker has copied a range from another that has it whole, and says so."""
        wanted = [
            (held, ordinal)
            for ordinal in filter(self._is_registered, ORDINALS)
            for held in copies.copies_to_make(self.state, ordinal)
            if any(self._is_registered(each) for each in held.complete)
        ]
        if wanted:
            held, ordinal = self.copying.choice(wanted)
            self.whole[held.id].add(ordinal)
            losses = held.losses.get(ordinal, 0)
            self._say(Completed(held.id, ordinal, self._number(ordinal), losses))

    def _drop_copy(self) -> None:
        sealed = [each for each in self.state.ranges.values() if each.is_sealed]
        due = list(copies.copies_to_drop(self.state))
        if due and self.copying.random() < 0.7:
            self._say(self.copying.choice(due))
        elif sealed:  # whatever it is good for
            held = self.copying.choice(sealed)
            self._say(DropCopy(held.id, self.copying.choice(ORDINALS)))

    def _find_damage(self) -> None:
        """In a copy of a sealed range: whoever finds it says so before anything else."""
        sealed = [each for each in self.state.ranges.values() if each.is_sealed]
        if sealed:
            held, ordinal = self.copying.choice(sealed), self.copying.choice(ORDINALS)
            losses = held.losses.get(ordinal, 0)
            if self._is_registered(ordinal):
                self._say(Lost(held.id, ordinal, self._number(ordinal), losses), is_late=False)

    def _say(self, command: Command, *, is_late: bool | None = None) -> None:
        """It arrives now, or later, and perhaps again."""
        stamped = Stamped(self.copying.getrandbits(63), command)
        if is_late is None:
            self.late_copies.append(stamped)
            is_late = self.copying.random() < 0.4
        if not is_late:
            self.apply_command(stamped)

    # --- commands ---

    def _send(self, command: Command, *, is_late: bool = False) -> None:
        """It arrives now or later, more than once, or never."""
        stamped = Stamped(self.chance.getrandbits(63), command)
        self.sent.append(stamped)
        self.waiting += [stamped] * self.chance.choice((0, 1, 1, 1, 2))
        if not is_late and self.chance.random() < 0.6:
            self.apply_command(stamped)

    def apply_command(self, stamped: Stamped) -> None:
        """Carry it out, and check what that has changed."""
        before = self.state
        after = ring_commands.apply_command(before, stamped)
        assert after == ring_commands.apply_command(before, stamped), (
            "not the same state every time"
        )
        if stamped.id in before.recent:
            assert after == before, f"applied again: {stamped.command}"
            return
        refusal = after.recent[stamped.id]
        kind = type(stamped.command).__name__
        if refusal is not None:
            assert replace(after, recent={}) == replace(before, recent={}), f"{refusal} but changed"
            self.applied[f"{kind}: {refusal.reason}"] += 1
        else:
            self.applied[kind] += 1
        self.state = after
        self._take(stamped.command, before, refused=refusal is not None)
        self._check(before)
        check_state(after)

    def _take(self, command: Command, before: RingState, *, refused: bool) -> None:
        """What brokers do that have applied it."""
        for range_id, step in list(self.stopped.items()):
            is_open = self.state.step is not None and self.state.step.id == step
            if not is_open:
                del self.stopped[range_id]
        for range_id in self.state.ranges.keys() - before.ranges.keys():
            self.whole[range_id] = {*ORDINALS}
        if isinstance(command, Register) and self.state.brokers is not before.brokers:
            known = registrations.last_registration(before, command.ordinal)
            assert command.replaces == known, f"overtaken: {command}"
        if isinstance(command, AcceptLoss) and not refused:
            self._count_from(self.state.ranges[command.range_id], command.ordinal)
        if isinstance(command, Lead) and not refused:
            self._note_loss(command, before)
        if isinstance(command, Lost) and not refused:
            self.whole[command.range_id].discard(command.ordinal)
        if isinstance(command, DropCopy) and not refused:
            self._check_dropped(command)
        if isinstance(command, PurgeTopics):
            purged = before.deleted.keys() - self.state.deleted.keys()
            for lacking in self.lacking.values():
                lacking -= purged
            for place in [each for each in self.seen if each[0] in purged]:
                del self.seen[place]
                self.ends.pop(place, None)
        self._look(before)

    def _note_loss(self, command: Lead, before: RingState) -> None:
        """What a ghost has counts from now on, if it leads: it lacks what was not flushed.

        Its process may have died before the lead was committed, and then its disk too. It leads
        nothing, and comes back as a ghost of its disk: what counted before still does.
        """
        led = self.state.ranges[command.range_id]
        if led.lossy_epochs == before.ranges[led.id].lossy_epochs:
            return
        if command.ordinal in self.whole[led.id]:
            self._count_from(led, command.ordinal)
            return
        assert not self._runs(Replica(command.ordinal, command.registration)), (
            f"more than power is lost: {led}"
        )

    def _count_from(self, led: RangeState, ordinal: int) -> None:
        """What this broker has counts, and who has not copied that lacks something.

        But for ghosts of power: nothing is acknowledged without them, so what they lack is what
        they lacked before.
        """
        members = () if led.is_sealed else led.isr
        self.whole[led.id] &= {each.ordinal for each in members if each.cause == "power"}
        self._catch_up(led.id, ordinal)

    def _look(self, before: RingState) -> None:
        """Which topics have been `written` ones while a broker was registered as it is."""
        if not self.whole:
            self.whole = {range_: {*ORDINALS} for range_ in self.state.ranges}
        written = {
            topic.id
            for topic in self.state.topics.values()
            if topic.settings.durability == "written"
        } | {
            key
            for key, each in self.state.deleted.items()
            if each.topic.settings.durability == "written"
        }
        for ordinal, broker in self.state.brokers.items():
            known = before.brokers.get(ordinal)
            is_new = known is None or known.number != broker.number
            if is_new and broker.loss != "process":
                self.written_since[ordinal] = set()
            self.written_since.setdefault(ordinal, set()).update(written)

    # --- what must hold ---

    def _check(self, before: RingState) -> None:
        for broker in self.state.brokers.values():
            known = self.numbers.get(broker.ordinal, 0)
            assert broker.number in (known, known + 1), f"registration {broker}, {known} before"
            self.numbers[broker.ordinal] = broker.number
        for range_id, range_ in self.state.ranges.items():
            old = before.ranges.get(range_id)
            if range_ is not old:
                self._check_range(old, range_)
        for range_ in open_ranges(self.state):
            for member in range_.isr:
                if not member.is_ghost and self._runs(member):
                    has_all = self._has_all(range_.id, member.ordinal)
                    assert has_all, f"{member} lacks events: {range_}"
        for range_ in self.state.ranges.values():
            for ordinal in range_.complete:
                if self._is_registered(ordinal):
                    assert ordinal in self.whole[range_.id], f"{ordinal} lacks events: {range_}"
        for topic in self.state.topics.values():
            if before.topics.get(topic.name) is not topic:
                self._check_partitions(topic_of(self.state, topic))

    def _check_dropped(self, command: DropCopy) -> None:
        """Invariant 11: as many brokers of the ring as hold a new range have it."""
        held = self.state.ranges[command.range_id]
        inside = [each for each in held.complete if each < self.state.broker_count]
        assert len(inside) >= self.state.copies, f"{command}: {held}"
        assert command.ordinal not in held.replicas, held

    def _check_range(self, old: RangeState | None, now: RangeState) -> None:
        if now.leader is not None and (old is None or old.leader != now.leader):
            key = now.id, now.epoch
            assert self.leaders.setdefault(key, now.leader) == now.leader, f"two led {key}"
            assert not self.state.brokers[now.leader.ordinal].is_fenced, f"fenced, leads: {now}"
        if old is None:
            return
        assert now.epoch >= old.epoch, f"{old} before {now}"
        if old.leader is not None and now.leader not in (None, old.leader):
            assert now.epoch > old.epoch, f"another leader in the same epoch: {now}"
        assert now.version >= old.version, f"{old} before {now}"
        assert now.isr == old.isr or now.version > old.version, f"{old} before {now}"
        if old.is_sealed:
            assert now.sealed_epoch == old.sealed_epoch, now
            return
        ordinals = {each.ordinal for each in now.isr}
        if not now.is_sealed and any(each.ordinal not in ordinals for each in old.isr):
            whole = sum(not each.is_ghost for each in now.isr)
            assert whole >= self.state.floor, f"below the floor: {now}"

    def _check_partitions(self, topic: Topic) -> None:
        for partition in topic.partitions:
            place = topic.topic_id, partition.partition
            known = self.seen.setdefault(place, partition)
            same = replace(
                partition, epoch=known.epoch, sealed_end=known.sealed_end, children=known.children
            )
            assert same == known, f"another partition of the same id: {known}, {partition}"
            if known.is_sealed:
                assert partition == known, f"a sealed partition changed: {known}, {partition}"
            if partition.is_sealed and not known.is_sealed:
                assert partition.sealed_end == self._end(place), (
                    f"sealed below its end: {partition}"
                )
            assert self.ends.setdefault(place, partition.first_offset) >= partition.first_offset, (
                partition
            )
            self.seen[place] = partition

    # --- views ---

    def _runs(self, replica: Replica) -> bool:
        """Its process runs, and is registered as the one."""
        number = self._number(replica.ordinal)
        return replica.registration == number and self._is_registered(replica.ordinal)

    def _is_registered(self, ordinal: int) -> bool:
        broker, disk = self.state.brokers.get(ordinal), self.disks[ordinal]
        return broker is not None and broker.start == disk.starts[-1].id

    def _number(self, ordinal: int) -> int:
        broker = self.state.brokers.get(ordinal)
        return 0 if broker is None else broker.number

    def _has_all(self, range_id: int, ordinal: int) -> bool:
        return ordinal in self.whole[range_id] and not self.lacking.get((range_id, ordinal))

    def _catch_up(self, range_id: int, ordinal: int) -> None:
        self.whole[range_id].add(ordinal)
        self.lacking.pop((range_id, ordinal), None)

    def _pending_members(self, led: RangeState) -> set[int]:
        """Of what the leader has asked for and may still get."""
        return {
            each.ordinal
            for asked in self.pending.get(led.id, [])
            if (asked.epoch, asked.version) == (led.epoch, led.version)
            for each in asked.isr
            if each.is_ghost or each.registration == self._number(each.ordinal)
        }

    def _end(self, place: tuple[UUID, int]) -> int:
        return self.ends.get(place, 0)

    def _new_disk(self, ordinal: int) -> Disk:
        return Disk(ordinal, self._id(), [Start(self._id(), "disk")])

    def _id(self) -> UUID:
        return UUID(int=self.chance.getrandbits(128), version=4)


Happening = Callable[[Scenario, Random], None]


def run_scenario(seed: int, step_count: int = 400, also: Happening | None = None) -> Scenario:
    """A scenario of a ring; the same with the same seed."""
    scenario = Scenario(Random(seed), also)
    for _ in range(step_count):
        scenario.happen()
    return scenario
