"""Clients at any broker: they ask for changes and for the state, and hold brokers to the answers.

Every command is unlike any other, so that its block is known among the committed ones. Consistent
reads are linear: a state that was asked for holds all that any broker had applied by then.
"""

from collections import Counter
from typing import NamedTuple

from tailrace_broker.core.node.events import Ask, AskBootstrap, AskRecovery, AskState
from tailrace_broker.model.commands import Command
from tailrace_broker.model.ring_state import Refusal
from tests.simulation.ring.agreement import Agreement
from tests.simulation.ring.process import Process
from tests.simulation.ring.violation import check

# Refusals that come from a broker itself: nothing was committed about the command.
NOT_AGREED = frozenset({"not-agreed"})


class _Asked(NamedTuple):
    process: int
    command: Command | None  # None: the state
    height: int  # committed when it was asked


class Clients:
    """What was asked and not answered yet; requests of dead processes are never answered."""

    def __init__(self, agreement: Agreement, counts: Counter[str]) -> None:
        self.answers: dict[int, Refusal | None] = {}  # of requests that were to be waited for
        self._agreement = agreement
        self._counts = counts
        self._asked: dict[int, _Asked] = {}
        self._next_request = 0
        self._waited_for: set[int] = set()

    def ask(self, process: Process, command: Command, *, waits: bool = False) -> int:
        """Have a command applied."""
        request = self._new_request(process, command, waits=waits)
        process.step(Ask(request, command))
        return request

    def ask_state(self, process: Process, *, waits: bool = False) -> int:
        """Have the state as it is committed now."""
        request = self._new_request(process, None, waits=waits)
        process.step(AskState(request))
        return request

    def found(self, process: Process, broker_count: int, factor: int) -> int:
        """Have a ring founded."""
        self._next_request += 1
        self._waited_for.add(self._next_request)
        process.step(AskBootstrap(self._next_request, broker_count, factor))
        return self._next_request

    def recover(self, process: Process) -> int:
        """Have a broker go on alone."""
        self._next_request += 1
        self._waited_for.add(self._next_request)
        process.step(AskRecovery(self._next_request))
        return self._next_request

    def answered(self, process: Process, request: int, refusal: Refusal | None) -> None:
        """Violation when the answer is not true."""
        if request in self._waited_for:
            self.answers[request] = refusal
        asked = self._asked.pop(request, None)
        if asked is None:
            return
        check(asked.process == process.number, f"request {request} is another process's")
        if refusal is not None and refusal.reason in NOT_AGREED:
            self._counts["unanswered"] += 1
        elif asked.command is None:
            self._counts["read"] += 1
            self._check_read(process, asked)
        else:
            self._counts["acknowledged" if refusal is None else "refused"] += 1
            self._check_command(process, asked.command, refusal)

    def _check_read(self, process: Process, asked: _Asked) -> None:
        assert process.control is not None
        height = process.control.raft.applied.height
        check(
            height >= asked.height,
            f"a read at {process.name} shows height {height}: {asked.height} was agreed before it",
        )

    def _check_command(self, process: Process, command: Command, refusal: Refusal | None) -> None:
        assert process.control is not None
        height = process.control.raft.applied.height
        outcomes = [
            outcome
            for at, stamped, outcome in self._agreement.commands
            if at <= height and stamped.command == command
        ]
        check(refusal in outcomes, f"{command} was answered {refusal}: agreed is {outcomes}")

    def _new_request(self, process: Process, command: Command | None, *, waits: bool) -> int:
        self._next_request += 1
        if waits:
            self._waited_for.add(self._next_request)
        asked = _Asked(process.number, command, self._agreement.height)
        self._asked[self._next_request] = asked
        return self._next_request
