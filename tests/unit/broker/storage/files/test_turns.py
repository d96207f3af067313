import asyncio

import pytest

from tailrace_broker.storage.files.turns import Turns


def test_turns_are_taken_in_the_order_of_asking() -> None:
    turns, begun = Turns(), list[str]()
    for name in "abc":
        turns.take(lambda name=name: begun.append(name))  # type: ignore[misc]
    assert begun == ["a"]
    turns.end()
    assert begun == ["a", "b"]
    turns.take(lambda: begun.append("d"))
    turns.end()
    turns.end()
    assert begun == ["a", "b", "c", "d"]
    turns.end()
    turns.take(lambda: begun.append("e"))
    assert begun == ["a", "b", "c", "d", "e"]


def test_a_turn_that_ends_at_once_lets_the_next_begin() -> None:
    turns, begun = Turns(), list[int]()

    def begin() -> None:
        begun.append(1)
        turns.end()

    for _ in range(3):
        turns.take(begin)
    assert begun == [1, 1, 1]


def test_a_turn_that_nobody_has_cannot_end() -> None:
    with pytest.raises(AssertionError):
        Turns().end()


def test_tasks_wait_for_their_turn_and_end_it_whatever_happens() -> None:
    async def scenario() -> None:
        turns, seen = Turns(), list[str]()

        async def fail() -> None:
            async with turns.turn():
                seen.append("first")
                await asyncio.sleep(0)
                raise ValueError

        async def follow() -> None:
            async with turns.turn():
                seen.append("second")

        failed = asyncio.create_task(fail())
        await asyncio.gather(follow(), return_exceptions=True)
        assert isinstance(failed.exception(), ValueError)
        assert seen == ["first", "second"]

    asyncio.run(scenario())


def test_who_is_cancelled_while_it_waits_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        turns = Turns()

        async def work() -> None:
            async with turns.turn():
                pass

        turns.take(lambda: None)
        waiting = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # before its turn
        await asyncio.sleep(0)
        turns.end()
        waiting[1].cancel()  # it has the turn, and does not know it yet
        await asyncio.wait_for(waiting[2], 5)
        assert [each.cancelled() for each in waiting] == [True, True, False]

    asyncio.run(scenario())
