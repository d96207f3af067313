"""Brokers' parts in a ring, without processes: messages arrive in a millisecond, disks take one.

Undisturbed, for scenarios step by step; disturbances are in `tests/simulation/ring`.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from tailrace_broker.codec.ring_snapshot import encode_slices
from tailrace_broker.core.node.applied import Identity
from tailrace_broker.core.node.control import Control, ControlTiming
from tailrace_broker.core.node.events import (
    Answer,
    Ask,
    AskBootstrap,
    AskState,
    CompactState,
    ControlEffect,
    ControlEvent,
    Heard,
    Recovered,
    Superseded,
)
from tailrace_broker.core.raft.events import (
    Compacted,
    Durable,
    Keep,
    Replace,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.raft import COMPACT_BYTES
from tailrace_broker.model.agreement import (
    Block,
    BlockId,
    Commit,
    DiskId,
    Head,
    Kept,
    Record,
    Reserved,
    Snapshot,
    Stored,
    Term,
)
from tailrace_broker.model.commands import Command
from tailrace_broker.model.messages import Message
from tailrace_broker.model.ring_state import Loss, Refusal, Start

SCENARIO_MS_MAX = 60_000
RECOVERED = Recovered()


class TestDisk:
    """What a broker's disk keeps, and by which starts it is known."""

    __test__ = False

    def __init__(self, ordinal: int, generation: int = 0) -> None:
        self.id = DiskId(ordinal, UUID(int=1 + ordinal + 1000 * generation))
        self.boot = 0
        self.starts: list[Start] = []
        self.snapshot: Snapshot | None = None
        self.records: list[Record] = []

    def begin(self, loss: Loss) -> Identity:
        """One more start of a process on it."""
        self.boot += 1
        start = UUID(int=self.id.incarnation.int * 100 + self.boot)
        self.starts.append(Start(start, loss))
        return Identity(self.id, self.boot, tuple(self.starts))

    def kept(self) -> Kept:
        """What it says at a start."""
        term, reserved = Term(0), None
        base = BlockId(-1, -1) if self.snapshot is None else self.snapshot.id
        head = commit = base
        blocks: dict[BlockId, Block] = {}
        for record in self.records:
            match record:
                case Term():
                    term = record
                case Stored(block):
                    blocks[block.id] = block
                case Head(block_id):
                    head = block_id
                case Commit(block_id):
                    commit = block_id
                case Reserved(bootstrap):
                    reserved = bootstrap
        above = tuple(block for block in blocks.values() if block.id.height > base.height)
        return Kept(term, self.snapshot, above, max(head, base), max(commit, base), reserved)


@dataclass
class World:
    """Some brokers on one clock. `cut`: brokers that nobody reaches, and that reach nobody.

    `lost`: kinds of messages that do not arrive.
    """

    now_ms: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    disks: dict[int, TestDisk] = field(default_factory=dict)
    controls: dict[int, Control] = field(default_factory=dict)
    answers: dict[int, Refusal | None] = field(default_factory=dict)
    superseded: list[int] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    lost: tuple[type[Message], ...] = ()
    timing: ControlTiming = field(default_factory=ControlTiming)
    _stalled: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    _queue: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _requests: Iterator[int] = field(default_factory=lambda: count(1))

    def start(
        self,
        ordinal: int,
        loss: Loss = "disk",
        disk: TestDisk | None = None,
        recovered: Recovered | None = RECOVERED,
    ) -> Control:
        """A process on the broker's disk, or on another from now on.

        `recovered` None: it recovers its logs until somebody says that it has.
        """
        if disk is not None or ordinal not in self.disks:
            self.disks[ordinal] = disk or TestDisk(ordinal)
        its_disk = self.disks[ordinal]
        generator = random.Random(f"{its_disk.id} {its_disk.boot}")
        control = Control(
            its_disk.begin(loss), its_disk.kept(), self.timing, generator, self.now_ms, self.rules
        )
        self.controls[ordinal] = control
        self.do(control, Woken())
        if recovered is not None:
            self.do(control, recovered)
        return control

    def kill(self, ordinal: int) -> None:
        """The others notice at once."""
        del self.controls[ordinal]
        for control in list(self.controls.values()):
            self.do(control, Unreachable(ordinal))

    def stall(self, ordinal: int) -> None:
        """Its disk ends no write that is begun from now on."""
        self._stalled[ordinal] = []

    def end_stall(self, ordinal: int) -> None:
        """All that it was asked to write is there."""
        for action in self._stalled.pop(ordinal):
            action()

    def lose_writes(self, ordinal: int) -> None:
        """What it was asked to write since its disk stalled never was."""
        del self._stalled[ordinal]

    def ask(self, ordinal: int, command: Command) -> int:
        """The number by which the answer will be known."""
        number = next(self._requests)
        self.do(self.controls[ordinal], Ask(number, command))
        return number

    def ask_state(self, ordinal: int) -> int:
        """As `ask`."""
        number = next(self._requests)
        self.do(self.controls[ordinal], AskState(number))
        return number

    def found(self, ordinal: int, broker_count: int, factor: int = 3) -> int:
        """As `ask`."""
        number = next(self._requests)
        self.do(self.controls[ordinal], AskBootstrap(number, broker_count, factor))
        return number

    def answer(self, number: int) -> Refusal | None:
        """As soon as it is there."""
        self.until(lambda: number in self.answers)
        return self.answers[number]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass; a scenario that goes on for too long has failed."""
        give_up_ms = self.now_ms + SCENARIO_MS_MAX
        while not is_so():
            assert self._queue, "nothing happens any more"
            self.now_ms, _, action = heapq.heappop(self._queue)
            assert self.now_ms < give_up_ms, "it has not come to be"
            action()

    def pass_ms(self, duration_ms: int) -> None:
        """Let so much time pass."""
        end_ms = self.now_ms + duration_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        self.now_ms = end_ms

    def settled(self) -> bool:
        """Everybody is registered, and every range is led."""
        return all(
            control.registration is not None
            and control.state is not None
            and all(range_.leader is not None for range_ in control.state.ranges.values())
            for control in self.controls.values()
        )

    def do(self, control: Control, event: ControlEvent) -> None:
        """Let a process take in an event, unless it is gone."""
        if self.controls.get(control.ordinal) is not control:
            return
        for effect in control.step(event, self.now_ms):
            self._execute(control, effect)
        control.validate()
        self._at(max(control.wake_at_ms, self.now_ms + 1), lambda: self._wake(control))

    def _wake(self, control: Control) -> None:
        if control.wake_at_ms <= self.now_ms:
            self.do(control, Woken())

    def _execute(self, control: Control, effect: ControlEffect) -> None:
        disk = self.disks[control.ordinal]
        match effect:
            case Send(ordinal, message):
                is_cut = {ordinal, control.ordinal} & self.cut
                if not is_cut and not isinstance(message, self.lost):
                    self._later(lambda: self._deliver(ordinal, Heard(message)))
            case Keep(number, records):
                self._write(control, lambda: self._keep(control, disk, number, records))
            case Replace(number, snapshot, records):
                self._write(
                    control, lambda: self._replace(control, disk, number, snapshot, records)
                )
            case CompactState(number, block_id, configuration, state, records):
                snapshot = Snapshot(block_id, configuration, b"".join(encode_slices(state)))
                self._write(
                    control, lambda: self._replace(control, disk, number, snapshot, records)
                )
                self._write(control, lambda: self.do(control, Compacted(snapshot)))
            case Answer(request, refusal):
                self.answers[request] = refusal
            case Superseded():
                self.superseded.append(disk.id.ordinal)
            case _:
                pass

    def _deliver(self, ordinal: int, event: ControlEvent) -> None:
        if ordinal in self.controls:
            self.do(self.controls[ordinal], event)

    def _keep(
        self, control: Control, disk: TestDisk, number: int, records: tuple[Record, ...]
    ) -> None:
        disk.records += records
        self.do(control, Durable(number))

    def _replace(
        self,
        control: Control,
        disk: TestDisk,
        number: int,
        snapshot: Snapshot,
        records: tuple[Record, ...],
    ) -> None:
        disk.snapshot = snapshot
        disk.records = list(records)
        self.do(control, Durable(number))

    def _write(self, control: Control, action: Callable[[], None]) -> None:
        if control.ordinal in self._stalled:
            self._stalled[control.ordinal].append(action)
        else:
            self._later(action)

    def _later(self, action: Callable[[], None]) -> None:
        self._at(self.now_ms + 1, action)

    def _at(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at_ms, next(self._numbers), action))


def founded(broker_count: int = 3, factor: int = 3, *, compact_bytes: int = COMPACT_BYTES) -> World:
    """A ring whose brokers are registered and lead their ranges."""
    world = World(timing=ControlTiming(compact_bytes=compact_bytes))
    for ordinal in range(broker_count):
        world.start(ordinal)
    number = world.found(0, broker_count, factor)
    assert world.answer(number) is None
    world.until(world.settled)
    return world
