"""The log of a child that asks what its parents remember of their producers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tailrace_broker.codec.producers import NO_SEQUENCE, ROW, ProducerState
from tailrace_broker.core.log.parent_windows import AncestorWindows, ParentWindows
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import Appended, AppendOutcome
from tailrace_broker.model.errors import NoLeaderError, NotReadyError, TailraceError
from tailrace_broker.storage.log import inheritance
from tailrace_broker.storage.log.inheritance import Inheritance
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.storage.batches import TIME_US, Event, columns_of
from tests.support.storage.storage import LogFiles, open_log, values_in
from tests.support.waits import until

PARENT = 3
ID = b"p" * 16


class Parents:
    """What is known of them, when it is; and what was appended, in the order of the answers."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.answers: list[AppendOutcome] = []
        self.asked = 0
        self._known = asyncio.Event()
        self._answer: ParentWindows | TailraceError = ParentWindows()
        self._tasks: list[asyncio.Task[None]] = []
        log.inherit(Inheritance(self._load, self._spawn))

    async def _load(self) -> ParentWindows:
        self.asked += 1
        await self._known.wait()
        self._known.clear()
        if isinstance(self._answer, TailraceError):
            raise self._answer
        return self._answer

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    @property
    def is_asking(self) -> bool:
        return not all(task.done() for task in self._tasks)

    def say(self, answer: ParentWindows | TailraceError) -> None:
        self._answer = answer
        self._known.set()

    def event(self, value: bytes, sequence: int | None = None) -> None:
        by = None if sequence is None else Producer(ID, sequence)
        self.log.append_event(b"k", value, TIME_US, 0, self.answers.append, by)

    def batch(self, value: bytes) -> None:
        self.log.append_records(columns_of([Event(value)]), self.answers.append)

    async def count(self, wanted: int) -> list[AppendOutcome]:
        await until(lambda: len(self.answers) >= wanted)
        return self.answers


def stored_by_parent(sequence: int) -> ParentWindows:
    rows = ROW.pack(sequence, 100, TIME_US, 1)
    return ParentWindows([AncestorWindows(PARENT, [0], [ProducerState(ID, NO_SEQUENCE, 0, rows)])])


async def test_appends_wait_in_their_order_until_the_parents_are_known(files: LogFiles) -> None:
    async with open_log(files) as log:
        parents = Parents(log)
        parents.event(b"0")
        parents.event(b"again", 7)
        parents.batch(b"1")
        parents.event(b"2", 8)
        await asyncio.sleep(0)
        assert (parents.answers, parents.asked) == ([], 1)

        parents.say(stored_by_parent(7))
        answers = await parents.count(4)
        assert Appended(100, is_duplicate=True, partition=PARENT) in answers
        assert await values_in(log) == [b"0", b"1", b"2"]
        parents.event(b"again", 7)
        assert (await parents.count(5))[-1] == answers[answers.index(answers[-1])]
        assert parents.asked == 1


async def test_parents_that_are_lost_for_good_keep_no_producer_away_for_ever(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inheritance, "FORGOTTEN_SECONDS", 0)

    async with open_log(files) as log:
        parents = Parents(log)
        parents.say(NoLeaderError("their only disk is lost"))
        parents.event(b"named", 8)
        assert await parents.count(1) == [Appended(0)]
        assert (parents.asked, parents.is_asking) == (1, False)


async def test_while_nobody_answers_only_producers_are_refused(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inheritance, "RETRY_SECONDS", 0)

    async with open_log(files) as log:
        parents = Parents(log)
        parents.event(b"0")
        parents.event(b"named", 8)
        parents.say(NoLeaderError("nobody is there"))
        refused, stored = sorted(await parents.count(2), key=lambda each: len(each))
        assert isinstance(stored, Appended)
        assert not isinstance(refused, Appended)
        assert isinstance(refused.error, NotReadyError)

        parents.say(NoLeaderError("still"))
        await until(lambda: parents.asked == 3)
        parents.event(b"named", 8)
        (*_, refused) = await parents.count(3)
        assert not isinstance(refused, Appended)
        parents.say(ParentWindows())
        await until(lambda: not parents.is_asking)
        parents.event(b"named", 8)
        (*_, stored) = await parents.count(4)
        assert stored == Appended(1)
        assert await values_in(log) == [b"0", b"named"]


async def test_what_waits_is_answered_when_the_role_ends(files: LogFiles) -> None:
    async with open_log(files) as log:
        parents = Parents(log)
        parents.event(b"0")
        log.role.change(None)
        (refused,) = await parents.count(1)
        assert not isinstance(refused, Appended)
        assert isinstance(refused.error, NoLeaderError)
        parents.say(ParentWindows())


async def test_what_waits_is_stored_before_the_log_closes_but_for_producers(
    files: LogFiles,
) -> None:
    async with open_log(files) as log:
        parents = Parents(log)
        parents.event(b"0")
        parents.event(b"named", 8)
    refused, stored = sorted(await parents.count(2), key=lambda each: len(each))
    assert isinstance(stored, Appended)
    assert not isinstance(refused, Appended)
    parents.say(ParentWindows())
    await asyncio.gather(*parents._tasks)


async def test_what_waits_for_a_log_that_goes_away_is_refused(files: LogFiles) -> None:
    async with open_log(files) as log:
        parents = Parents(log)
        parents.event(b"0")
        log.give_up(NotReadyError("it goes away"))
        (refused,) = await parents.count(1)
        assert not isinstance(refused, Appended)
        parents.say(ParentWindows())


@pytest.fixture
def files(tmp_path: Any) -> LogFiles:
    return LogFiles(tmp_path)
