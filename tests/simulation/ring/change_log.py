"""A scenario in few lines: what happens, and what changes of who belongs, leads and votes.

Without times, so that it stays the same as long as the same things happen in the same order.
"""

import re
from typing import TYPE_CHECKING

from tailrace_broker.core.node.events import Answer, ControlEffect, ControlEvent
from tailrace_broker.model.agreement import Configuration
from tests.simulation.ring.trace import Trace

if TYPE_CHECKING:
    from tests.simulation.ring.process import Process

_PROCESS_NUMBER = re.compile(r"#\d+")


class ChangeLog(Trace):
    """Lines about each process, when something of it is another than before."""

    def __init__(self) -> None:
        super().__init__(is_on=True)
        self._known: dict[int, dict[str, str]] = {}
        self._disks: dict[object, str] = {}

    def line(self, now_us: int, text: str) -> None:
        """Something happened."""
        self.lines.append(_PROCESS_NUMBER.sub("", text))

    def read(self, now_us: int, process: "Process") -> None:
        """A process found this on its disk."""
        self._note(process)

    def step(
        self, now_us: int, process: "Process", event: ControlEvent, effects: list[ControlEffect]
    ) -> None:
        """An event, and what follows from it."""
        for effect in effects:
            if isinstance(effect, Answer):
                outcome = "done" if effect.refusal is None else effect.refusal.reason
                self.line(now_us, f"{process.name} answers: {outcome}")
        self._note(process)

    def _note(self, process: "Process") -> None:
        known = self._known.setdefault(process.number, {})
        for what, value in self._view(process).items():
            if known.get(what) != value:
                known[what] = value
                self.line(0, f"{process.name} {what}: {value}")

    def _view(self, process: "Process") -> dict[str, str]:
        control = process.control
        if control is None:
            return {}
        mine, state = control.registration, control.state
        led = [each for each in (state.ranges if state else ()) if control.leads(each) is not None]
        return {
            "ring": "none" if state is None else f"of {state.broker_count}",
            "role": f"{control.raft.role}, term {control.raft.term}",
            "voters": self._voters(control.raft.configuration),
            "registered": "no" if mine is None else f"as {mine.number}, loss {mine.loss}",
            "leads ranges": ", ".join(map(str, led)) or "none",
        }

    def _voters(self, configuration: Configuration) -> str:
        groups = [
            " ".join(self._disks.setdefault(disk, self._name(disk.ordinal)) for disk in group)
            for group in (configuration.voters, configuration.next_voters)
        ]
        return " -> ".join(group for group in groups if group) or "none"

    def _name(self, ordinal: int) -> str:
        """0, and its next disks 0', 0''."""
        count = sum(name.rstrip("'") == str(ordinal) for name in self._disks.values())
        return f"{ordinal}{chr(39) * count}"
