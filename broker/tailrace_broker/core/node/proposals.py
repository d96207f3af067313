"""What other brokers ask of this one while it is the metadata's leader."""

from collections import Counter
from collections.abc import Container, Iterable

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.core.raft.leading import READS_MAX
from tailrace_broker.model.commands import Stamped
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.messages import ReadAsked


class Proposals:
    """Proposes each command once a term, and remembers who asked for which read."""

    def __init__(self, rules: Counter[str]) -> None:
        self._rules = rules
        self._proposed: set[int] = set()  # ids of commands that are not applied yet
        self._term = -1
        self._readers: dict[int, int] = {}  # ordinals by the id of a read

    def new(self, command: bytes, term: int, outcomes: Container[int]) -> Stamped | None:
        """The command, if it is to be proposed in this term.

        None: it was proposed, its outcome is known, or this broker cannot read it.
        """
        if self._term != term:
            self._term = term
            self._proposed.clear()
        try:
            stamped = decode_command(command)
        except CorruptMetadataError:  # of a newer version; once committed, nobody could read it
            self._rules["command.unknown"] += 1
            return None
        if stamped.id in self._proposed or stamped.id in outcomes:
            self._rules["command.known"] += 1
            return None
        return stamped

    def proposed(self, command_id: int) -> None:
        """It is on the chain."""
        self._proposed.add(command_id)

    def applied(self, command_ids: Iterable[int]) -> None:
        """Their outcomes are in the state."""
        self._proposed.difference_update(command_ids)

    def add_reader(self, message: ReadAsked) -> bool:
        """Whether to begin the read: it is not under way already, and there is room."""
        if message.request in self._readers or len(self._readers) >= READS_MAX:
            return False
        self._readers[message.request] = message.sender.ordinal
        return True

    def pop_reader(self, request: int) -> int:
        """The ordinal of the broker that asked for the read."""
        return self._readers.pop(request)

    def forget_readers(self) -> None:
        """This broker does not lead any more: they ask the next leader."""
        self._readers.clear()
