"""Mutations of what the ring commits, and of who takes part in it."""

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from tailrace_broker.core.node import applied, gossip
from tailrace_broker.core.node.applied import AppliedState
from tailrace_broker.core.node.bootstrap import Bootstrap
from tailrace_broker.core.node.control import Control
from tailrace_broker.core.node.duties import Duties, Duty
from tailrace_broker.core.node.events import BootstrapEffect, Recovered
from tailrace_broker.core.node.gossip import Gossip
from tailrace_broker.core.raft.events import ReadReady
from tailrace_broker.core.raft.leading import Leading
from tailrace_broker.core.raft.raft import Raft
from tailrace_broker.core.ring import commands as ring_commands
from tailrace_broker.core.ring import registrations
from tailrace_broker.model.commands import Register, Stamped
from tailrace_broker.model.messages import BootstrapAnswered
from tailrace_broker.model.ring_state import RangeState, Registration, Replica, RingState
from tests.simulation.ring.network import Network


def reads_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leader does not ask whether it is still one."""

    def answered(self: Leading, request: int) -> None:
        self._state.effects.append(ReadReady(request, self._state.commit.height))

    patch.setattr(Leading, "ask_read", answered)


def leader_resumes_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """A range is led on by its leader's next process."""
    ranges_after = registrations._ranges_after

    def resumed(
        state: RingState, before: Registration | None, now: Registration, damaged: Sequence[int]
    ) -> dict[int, RangeState]:
        ranges = ranges_after(state, before, now, damaged)
        for range_id, each in state.ranges.items():
            led = each.leader is not None and each.leader.ordinal == now.ordinal
            if led and Replica(now.ordinal, now.number) in ranges[range_id].isr:
                leader = Replica(now.ordinal, now.number)
                ranges[range_id] = replace(ranges[range_id], leader=leader)
        return ranges

    patch.setattr(registrations, "_ranges_after", resumed)


def class_of_the_last_start_only(patch: pytest.MonkeyPatch) -> None:
    """What starts since the last registration lost is not carried over."""

    def last(before: Registration | None, command: Register) -> str:
        is_known = before is not None and before.incarnation == command.incarnation
        return command.starts[-1].loss if is_known else "disk"

    patch.setattr(registrations, "loss_since", last)


def power_loss_stays_in_the_isr(patch: pytest.MonkeyPatch) -> None:
    """Though its topics are written, not synced."""
    patch.setattr(registrations, "_ranges_with_unflushed", lambda state, before: frozenset())


def older_process_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Two processes of one ordinal take themselves for the registered one."""

    def registration(self: AppliedState) -> Registration | None:
        return None if self.state is None else self.state.brokers.get(self._ordinal)

    patch.setattr(AppliedState, "registration", property(registration))
    patch.setattr(AppliedState, "is_superseded_since", lambda self, before: False)


def leads_before_its_logs_are_recovered(patch: pytest.MonkeyPatch) -> None:
    """A process registers and leads at once."""

    def due(self: Duties, now_ms: int) -> Iterator[Duty]:
        self._recovered = self._recovered or Recovered()
        return shipped(self, now_ms)

    shipped = Duties.due
    patch.setattr(Duties, "due", due)


def a_reset_alone_deposes(patch: pytest.MonkeyPatch) -> None:
    """Nobody dials again; and the metadata's leader asks not whom it has heard."""
    patch.setattr(Network, "_takes_connection", lambda self, peer, ordinal: False)
    patch.setattr(Control, "_is_hasty", lambda self, command, sender, now_ms: False)


def suspicion_right_after_the_own_start(patch: pytest.MonkeyPatch) -> None:
    """Who was not heard yet is dead; and the metadata's leader asks not whom it has heard.

    Planted together: each masks the other.
    """
    patch.setattr(Gossip, "may_suspect", lambda self, now_ms: True)
    patch.setattr(Control, "_is_hasty", lambda self, command, sender, now_ms: False)


def stalled_data_passes_for_alive(patch: pytest.MonkeyPatch) -> None:
    """Only the metadata's own writes silence a broker."""
    patch.setattr(Raft, "note_data", lambda self, is_stalled: None)


def damping_per_range(patch: pytest.MonkeyPatch) -> None:
    """A broker fails as often as it led ranges."""
    patch.setattr(gossip, "INCIDENT_MS", 0)


def commands_done_twice(patch: pytest.MonkeyPatch) -> None:
    """A command that arrives again is applied again."""

    def apply_command(state: RingState, stamped: Stamped) -> RingState:
        recent = {key: value for key, value in state.recent.items() if key != stamped.id}
        return shipped(replace(state, recent=recent), stamped)

    shipped = ring_commands.apply_command
    patch.setattr(applied, "apply_command", apply_command)
    patch.setattr("tests.simulation.ring.agreement.apply_command", apply_command)


def bootstrap_decided_by_its_founder(patch: pytest.MonkeyPatch) -> None:
    """Broker 0 need not have taken what another founder has all answers for."""
    patch.setattr(Bootstrap, "decides", True)


def bootstrap_by_majority(patch: pytest.MonkeyPatch) -> None:
    """Two empty brokers of three are enough; who is not empty is not asked, nor is gossip."""

    def answered(self: Bootstrap, answer: BootstrapAnswered) -> list[BootstrapEffect]:
        attempt = self._attempt
        if attempt is None or not answer.is_empty or answer.bootstrap != attempt.id:
            return []
        attempt.answers[answer.sender.ordinal] = answer
        if 2 * len(attempt.answers) <= attempt.ask.broker_count:
            return []
        for ordinal in range(attempt.ask.broker_count):
            absent = replace(answer, sender=answer.sender._replace(ordinal=ordinal))
            attempt.answers.setdefault(ordinal, absent)
        initial = self._made_initial(attempt)
        assert initial is not None
        return [self._take(initial, answer.bootstrap)]

    patch.setattr(Bootstrap, "_answered", answered)
    patch.setattr(Gossip, "leader_hint", lambda self: None)
