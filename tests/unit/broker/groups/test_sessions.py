"""Sessions of a group whose coordinator has ended: nobody is removed, and nothing waits."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tailrace_broker.core.groups.group import Group
from tailrace_broker.groups import sessions
from tailrace_broker.groups.sessions import GroupSessions
from tailrace_broker.model.errors import NoLeaderError
from tailrace_broker.model.group import Subscription


def test_a_removal_that_fails_after_the_end_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another broker coordinates the group: its log takes nothing here any more."""
    monkeypatch.setattr(sessions, "PAUSE_SECONDS_MIN", 0)
    monkeypatch.setattr(sessions, "RETRY_SECONDS", 0)

    async def scenario() -> None:
        group = Group("g", 1)
        member = Subscription("c1", "g", ("t",), session_ms=1)
        joined = group.join(member, {}, {}, 0)
        assert joined is not None
        group.apply(joined, 0)
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        removals = 0
        is_removing, has_ended = asyncio.Event(), asyncio.Event()

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(loop.create_task(work))

        async def remove_expired() -> None:
            nonlocal removals
            removals += 1
            is_removing.set()
            await has_ended.wait()
            raise NoLeaderError("the epoch has ended")

        subject = GroupSessions(
            group, spawn, lambda: 10**9, waiting=lambda: (), remove_expired=remove_expired
        )
        subject.watch()
        await is_removing.wait()
        subject.end()
        has_ended.set()
        await tasks[0]
        subject.watch()  # a group event was stored in the turn of the end
        for _ in range(5):
            await asyncio.sleep(0)
        assert removals == 1
        assert subject._timer is None

    asyncio.run(scenario())
