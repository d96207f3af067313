"""A ring of whole brokers, its clients, and what is always true of them, all under a seed."""

import random
from collections import Counter
from functools import partial
from uuid import UUID

from tailrace_broker.core.node.bootstrap import voter_count
from tailrace_broker.core.node.control import ControlTiming
from tailrace_broker.core.node.events import Applied, CompactState, ControlEffect, ControlEvent
from tailrace_broker.core.raft.events import Keep, Replace, Send
from tailrace_broker.model.agreement import INITIAL_ID
from tailrace_broker.model.messages import Append
from tailrace_broker.model.ring_state import Refusal
from tests.simulation.ring.agreement import Agreement, stored_blocks
from tests.simulation.ring.clients import Clients
from tests.simulation.ring.data.replicas import Replicas
from tests.simulation.ring.disk import Crash, Disk, Identity
from tests.simulation.ring.network import Environment, Network
from tests.simulation.ring.process import DAMAGED, RETIRED, Process, Surroundings
from tests.simulation.ring.promises import check_kept, check_silent, note_reported
from tests.simulation.ring.registrations import Registrations
from tests.simulation.ring.schedule import US_PER_MS, Schedule
from tests.simulation.ring.steps.operator import Operator
from tests.simulation.ring.trace import Trace
from tests.simulation.ring.violation import check
from tests.simulation.ring.wholeness import missing

# Small, so that a scenario compacts now and then.
LOG_BYTES = 256 * 1024
# A compaction every few dozen writes.
COMPACT_BYTES = 5 * 1024
FIRST_START_MS_MAX = 200
# In place of an ordinal: whoever leads the metadata then.
LEADER = -1


class World:
    """Brokers 0 to `broker_count` - 1, each with a disk, and a process now and then.

    The ring is founded of the first `founded_count` of them.
    """

    def __init__(
        self,
        seed: int,
        *,
        broker_count: int,
        factor: int,
        environment: Environment,
        trace: Trace,
        has_data: bool = False,
        has_groups: bool = False,
        spare_count: int = 0,
    ) -> None:
        """`has_data`: the brokers replicate logs; `has_groups`: consumers read them in groups.

        `spare_count`: there are so many more than `broker_count`.
        """
        self.founded_count = broker_count
        self.broker_count = broker_count + spare_count
        self.factor = factor
        self.faults: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.generator = random.Random(f"world {seed}")
        self.schedule = Schedule()
        self.network = Network(self.schedule, random.Random(f"network {seed}"), self.faults)
        self.network.environment = environment
        self.registrations = Registrations()
        self.replicas = Replicas(self, seed, has_groups=has_groups) if has_data else None
        self.operator: Operator | None = None
        if spare_count:
            self.operator = Operator(self, random.Random(f"operator {seed}"))
        changed = None if self.replicas is None else self.replicas.changed
        self.agreement = Agreement(self.registrations, changed)
        self.clients = Clients(self.agreement, self.counts)
        self.disks: dict[int, Disk] = {}
        self.copies: dict[int, Disk] = {}
        self.processes: list[Process] = []  # living ones, the oldest first
        self.last_process: Process | None = None  # the one that took the last step
        self._lost: set[int] = set()  # whose disks were lost since the ring was last whole
        self._trace = trace
        self._process_count = 0
        self.step_count = 0
        self.healed_ms = 0  # how long it took the ring to be whole again

    def begin(self) -> None:
        """Empty disks; processes come up one by one."""
        for ordinal in range(self.broker_count):
            self.disks[ordinal] = self.empty_disk()
            delay_ms = self.generator.randrange(FIRST_START_MS_MAX)
            self.schedule.after(delay_ms * US_PER_MS, partial(self.start, ordinal))

    # --- brokers ---

    def newest(self, ordinal: int) -> Process | None:
        """The living process of a broker; of two the one that was started last."""
        if ordinal == LEADER:
            ordinal = self.leader()
        return next((each for each in reversed(self.processes) if each.ordinal == ordinal), None)

    def leader(self) -> int:
        """Who leads the metadata, as far as anybody knows; broker 0 while nobody does."""
        leaders = [p for p in self.processes if p.control and p.control.raft.role == "leader"]
        if not leaders:
            return 0
        return max(leaders, key=lambda p: p.control.raft.term if p.control else 0).ordinal

    def start(self, ordinal: int) -> None:
        """A process on the broker's disk, unless one runs there."""
        disk = self.disks[ordinal]
        if any(each.disk is disk for each in self.processes):
            return
        self._process_count += 1
        around = Surroundings(
            self.schedule,
            self.network,
            self.generator,
            self,
            ControlTiming(compact_bytes=COMPACT_BYTES),
            self.rules,
            LOG_BYTES,
            self._trace,
            self.replicas,
        )
        process = Process(ordinal, self._process_count, disk, around)
        self.processes.append(process)
        self.say(f"{process.name} starts")
        process.start()

    def kill(self, process: Process, crash: Crash, *, down_ms: int) -> None:
        """Now, and it comes back so much later."""
        process.down_ms = down_ms
        process.die(crash, f"killed: {crash}")

    def empty_disk(self) -> Disk:
        """Of no ring yet."""
        incarnation = UUID(int=self.generator.getrandbits(128), version=4)
        identity = Identity(incarnation, 0, (), 0, is_clean=False)
        return Disk(identity, self.generator)

    def may_lose_disk(self, ordinal: int) -> bool:
        """Fewer than half of the voters at a time, and never the only one; it is lost by this."""
        state, configuration = self.agreement.state, self.agreement.configuration
        ring_count = self.founded_count if state is None else state.broker_count
        voters = voter_count(ring_count)
        if configuration is not None and self.operator is not None:
            # Those of the size before vote until the change is committed.
            sets = (configuration.voters, configuration.next_voters)
            voters = min(voters, *(len(each) for each in sets if each))
        if state is not None and state.step is not None:
            # Its end may be on the way, and with it the change to the voters of the size after.
            voters = min(voters, voter_count(state.step.brokers_after))
        has_only_copy = state is not None and any(
            each.complete == (ordinal,) for each in state.ranges.values()
        )
        if ring_count == 1 or ordinal < voters < 3 or has_only_copy:
            return False
        if missing(self) is None and self._has_all_copies():
            self._lost.clear()
        lacking = self._lost | {ordinal} | self._never_reached(voters)
        is_data_kept = self.replicas is None or len(self._lost | {ordinal}) == 1
        if not is_data_kept or len(lacking) > max(1, (voters - 1) // 2):
            return False
        self._lost.add(ordinal)
        return True

    def _has_all_copies(self) -> bool:
        """What was lost is replaced; only then another disk may be lost."""
        return self.replicas is None or self.replicas.truth.lacking_copies() is None

    def _never_reached(self, voters: int) -> set[int]:
        """By the bootstrap, of those that vote: what the others lose is nowhere else."""
        if self.agreement.initial is None:
            return set()
        return {each for each in range(voters) if self.disks[each].applied < INITIAL_ID}

    @property
    def is_traced(self) -> bool:
        """Somebody reads what happens."""
        return self._trace.is_on

    def say(self, line: str) -> None:
        """For the trace."""
        self._trace.line(self.schedule.now_us, line)

    # --- what processes tell ---

    def read(self, process: Process) -> None:
        """Its disk has been read and its machine made."""
        self._trace.read(self.schedule.now_us, process)
        self.last_process = process
        self.registrations.started(process)
        check_kept(process)
        self.agreement.look(process)
        self.registrations.look(process)

    def stepped(self, process: Process, event: ControlEvent, effects: list[ControlEffect]) -> None:
        """It took in an event; the effects are not done yet."""
        self.step_count += 1
        if self._trace.is_on:
            self._trace.step(self.schedule.now_us, process, event, effects)
        self.last_process = process
        has_changed = False
        for effect in effects:
            if type(effect) is Send:
                note_reported(process, effect)
                check_silent(process, effect)
                self.agreement.quorums.reported(effect)
                if type(effect.message) is Append:
                    self.agreement.reported(process, effect.message)
            elif isinstance(effect, Keep | Replace | CompactState):
                self.agreement.stored(stored_blocks(effect.records))
            elif type(effect) is Applied:
                has_changed = True
        self.agreement.look(process, event)
        if has_changed:
            self.registrations.look(process)

    def answered(self, process: Process, request: int, refusal: Refusal | None) -> None:
        """To a client."""
        self.clients.answered(process, request, refusal)

    def ended(self, process: Process, why: str) -> None:
        """It is started again, unless the broker has another disk by now."""
        self.say(f"{process.name} ends: {why}")
        self.processes.remove(process)
        if self.disks[process.ordinal] is not process.disk:
            return
        if why.startswith(DAMAGED):
            check(process.disk.is_rotten, f"{process.name} does not start: {why}")
            self.disks[process.ordinal] = self.empty_disk()
        if why == RETIRED:
            self.rules["ring.retired_disk"] += 1
            self.disks[process.ordinal] = self.empty_disk()
        self.schedule.after(process.down_ms * US_PER_MS, partial(self.start, process.ordinal))
