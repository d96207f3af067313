"""What must be true of who a broker is, what its data may have lost, and who leads which range.

The world knows how processes ended; the replicated state must never take a disk for better.
"""

from typing import NamedTuple
from uuid import UUID

from tailrace_broker.model.commands import Command, Register
from tailrace_broker.model.ring_state import LOSSES, Loss, Registration, RingState
from tests.simulation.ring.disk import Disk
from tests.simulation.ring.process import Process
from tests.simulation.ring.violation import check


class _Life(NamedTuple):
    disk: Disk
    ends_before: int  # of processes on that disk


class Registrations:
    """Every start of a process on every disk, and what the ring made of it."""

    def __init__(self) -> None:
        self._lives: dict[UUID, _Life] = {}
        self._epochs: dict[tuple[int, int], tuple[int, int]] = {}
        self._leading: dict[tuple[int, int], str] = {}
        self._numbers: dict[tuple[int, int], UUID] = {}

    def started(self, process: Process) -> None:
        """It has noted its start."""
        disk = process.disk
        self._lives[disk.identity.starts[-1].id] = _Life(disk, len(disk.ends))

    def founded(self, state: RingState) -> None:
        """The initial state; one before it, if there was one, came to nothing."""
        self._numbers.clear()
        self._epochs.clear()
        for registration in state.brokers.values():
            self._check_number(registration)
        self._check_epochs(None, state)

    def changed(self, before: RingState, after: RingState, command: Command) -> None:
        """The replicated state is another."""
        if after.brokers is not before.brokers:
            for registration in after.brokers.values():
                self._check_number(registration)
        if isinstance(command, Register):
            self._check_registration(before, after, command.ordinal)
        if after.ranges is not before.ranges:
            self._check_epochs(before, after)

    def look(self, process: Process) -> None:
        """What the process takes itself for, after its state has changed."""
        control = process.control
        assert control is not None
        if control.state is None:
            return
        # A process that a ring is founded with has nothing to recover, and may be handed a range.
        mine = control.registration
        is_first = process.disk.identity.boot == 1 or (mine is not None and mine.number == 1)
        is_recovered = process.is_recovered or is_first
        for range_id in control.state.ranges:
            epoch = control.leads(range_id)
            if epoch is not None:
                check(
                    is_recovered,
                    f"{process.name} leads range {range_id} before its logs are recovered",
                )
                known = self._leading.setdefault((range_id, epoch), process.name)
                check(
                    known == process.name,
                    f"range {range_id} is led in epoch {epoch} by {known} and {process.name}",
                )

    def _check_number(self, registration: Registration) -> None:
        key = (registration.ordinal, registration.number)
        known = self._numbers.setdefault(key, registration.start)
        check(known == registration.start, f"registration {key} is of two processes")

    def _check_epochs(self, before: RingState | None, after: RingState) -> None:
        for range_id, now in after.ranges.items():
            was = None if before is None else before.ranges.get(range_id)
            if was is now:
                continue
            check(was is None or was.epoch <= now.epoch, f"range {range_id}: the epoch falls")
            if now.leader is not None:
                leader = (now.leader.ordinal, now.leader.registration)
                known = self._epochs.setdefault((range_id, now.epoch), leader)
                check(
                    known == leader,
                    f"epoch {now.epoch} of range {range_id} is of {known} and {leader}",
                )

    def _check_registration(self, before: RingState, after: RingState, ordinal: int) -> None:
        was, now = before.brokers.get(ordinal), after.brokers.get(ordinal)
        if was is None or now is None or was.start == now.start:
            return
        loss = self._loss(was, now)
        check(
            LOSSES.index(now.loss) >= LOSSES.index(loss),
            f"broker {ordinal} is registered with loss {now.loss}: it was {loss}",
        )
        is_fsync = all(t.settings.durability == "fsync" for t in after.topics.values())
        for each in after.ranges.values():
            check(
                not (each.leader is not None and each.leader.ordinal == ordinal),
                f"broker {ordinal} leads range {each.id} still after it was registered",
            )
            replica = next((r for r in each.isr if r.ordinal == ordinal), None)
            if replica is None or replica.is_ghost:
                continue
            old = before.ranges[each.id].isr
            # Nobody has what the only copy has lost: no other could be elected in its place.
            is_kept = is_fsync or len(old) == 1
            keeps = loss in ("clean", "process") or (loss == "power" and is_kept)
            was_in = any(r[:2] == (ordinal, was.number) and not r.is_ghost for r in old)
            check(
                was_in and keeps and replica.registration == now.number,
                f"{replica} is in the ISR of range {each.id}; lost: {loss}",
            )

    def _loss(self, was: Registration, now: Registration) -> Loss:
        """What has truly happened between the two."""
        old, new = self._lives.get(was.start), self._lives.get(now.start)
        if old is None or new is None or old.disk is not new.disk:
            return "disk"
        ends = new.disk.ends[old.ends_before : new.ends_before]
        return max(ends, key=LOSSES.index, default="clean")
