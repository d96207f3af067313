"""Appends of one log that name their producer: each is stored once, its retries are answered.

A request is under way until it is committed or has failed; a retry gets its outcome.
"""

from tailrace_broker.core.log.parent_windows import Inherited, ParentWindows
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows, Verdict
from tailrace_broker.core.log.tail_events import Acknowledge, Fail, TailEffect
from tailrace_broker.model.append_outcome import OnAppended
from tailrace_broker.model.errors import TailraceError


class ProducerAppends:
    """Tells new requests from retries, for one leader in one epoch."""

    __slots__ = ("_parents", "_retries", "_windows")

    def __init__(self, windows: ProducerWindows, parents: ParentWindows | None) -> None:
        """`windows` are the replica's, which learn from each batch that is written."""
        self._windows = windows
        self._parents = parents
        self._retries: dict[Producer, list[OnAppended]] = {}  # by the request that is under way

    def admit(
        self, producer: Producer, record_count: int, done: OnAppended, now_us: int
    ) -> list[TailEffect] | Duplicate | Inherited | None:
        """None: the request is new, and under way from now on. Else append nothing.

        The effects answer what is refused. A retry of what is under way gets its outcome.
        """
        try:
            if self._parents is not None and not self._windows.knows(producer):
                inherited = self._parents.find(producer, record_count, now_us)
                if inherited is not None:
                    return inherited
            verdict = self._windows.begin(producer, record_count, now_us)
        except TailraceError as error:
            return [Fail(done, error)]
        if isinstance(verdict, Duplicate):
            return verdict
        if verdict is Verdict.NEW:
            self._retries[producer] = []
            return None
        self._retries[producer].append(done)
        return []

    def committed(self, producer: Producer, offset: int) -> list[TailEffect]:
        """End a request that is committed; return the answers to its retries."""
        self._windows.end(producer)
        retries = self._retries.pop(producer)
        return [Acknowledge(done, offset, is_duplicate=True) for done in retries]

    def failed(self, producer: Producer, error: TailraceError) -> list[TailEffect]:
        """End a request that has failed; return the answers to its retries. The next is new."""
        self._windows.end(producer)
        return [Fail(done, error) for done in self._retries.pop(producer)]
