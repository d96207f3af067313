"""The model of a ring's scenarios: what it takes for a loss, and what not."""

from itertools import count
from random import Random
from uuid import UUID

import pytest

from tailrace_broker.core.ring import range_commands
from tailrace_broker.model.commands import AcceptLoss, Command, CreateTopic, Lead, Register, Stamped
from tailrace_broker.model.ring_state import Loss
from tailrace_broker.model.topic import TopicSettings
from tests.support.ring.ring_scenario import Scenario

A, B = 0, 1


class Script:
    """A range of two replicas and a `written` topic, led by A; what happens to it, in order."""

    def __init__(self) -> None:
        self.scenario = Scenario(Random(1), size=(2, 2))
        self._ids = count(1)
        topic = CreateTopic("orders", UUID(int=1), TopicSettings(durability="written"))
        assert self.send(topic) is None
        assert self.lead(A) is None

    def send(self, command: Command) -> str | None:
        """The command arrives; why it is refused, if it is."""
        stamped = Stamped(next(self._ids), command)
        self.scenario.apply_command(stamped)
        refusal = self.scenario.state.recent[stamped.id]
        return None if refusal is None else refusal.reason

    def lead(self, ordinal: int) -> str | None:
        """By the committed registration, whichever process runs."""
        epoch = self.scenario.state.ranges[0].epoch
        return self.send(Lead(0, epoch, ordinal, self._number(ordinal)))

    def accept_loss(self, ordinal: int) -> str | None:
        epoch = self.scenario.state.ranges[0].epoch
        return self.send(AcceptLoss(0, epoch, ordinal, self._number(ordinal)))

    def register(self, ordinal: int) -> None:
        disk, number = self.scenario.disks[ordinal], self._number(ordinal)
        starts = tuple(disk.starts)
        assert self.send(Register(ordinal, disk.incarnation, disk.boot, starts, number)) is None

    def come_back(self, ordinal: int, loss: Loss) -> None:
        """Die, with this loss, and register again."""
        self.scenario.restart(ordinal, loss)
        self.register(ordinal)

    def _number(self, ordinal: int) -> int:
        return self.scenario.state.brokers[ordinal].number


def test_a_ghost_that_loses_its_disk_before_its_lead_is_committed_costs_nothing() -> None:
    """Nothing is acknowledged in its epoch; it comes back as a ghost, and the other one leads."""
    script = Script()
    script.come_back(A, "power")
    script.come_back(B, "power")
    script.scenario.restart(A, "disk")

    assert script.lead(A) is None  # it had asked before
    script.register(A)

    assert script.lead(A) == "all-ghosts"
    assert script.lead(B) is None


def test_a_lead_of_a_ghost_whose_disk_is_gone_leaves_the_range_to_a_person() -> None:
    script = Script()
    script.come_back(A, "power")
    script.come_back(B, "disk")
    script.scenario.restart(A, "disk")

    assert script.lead(A) is None
    script.register(A)

    assert [script.lead(each) for each in (A, B)] == ["all-ghosts", "all-ghosts"]
    assert script.accept_loss(B) is None


@pytest.mark.parametrize("loss", ["power", "disk"])
def test_after_a_ghost_that_led_another_leads_without_which_nothing_was_acknowledged(
    loss: Loss,
) -> None:
    script = Script()
    script.come_back(A, "power")
    script.come_back(B, "power")
    assert script.lead(A) is None

    script.come_back(A, loss)

    assert script.lead(B) is None


def test_after_an_accepted_loss_a_ghost_leads_without_which_nothing_was_acknowledged() -> None:
    script = Script()
    script.come_back(A, "disk")
    script.come_back(B, "power")
    assert script.accept_loss(A) is None

    script.come_back(A, "disk")

    assert script.lead(B) is None


def test_a_ghost_that_has_lost_its_disk_and_leads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    script.come_back(A, "disk")
    script.come_back(B, "power")
    monkeypatch.setattr(range_commands, "greatest_ghosts", lambda *_: {A, B})

    with pytest.raises(AssertionError, match="more than power is lost"):
        script.lead(A)
