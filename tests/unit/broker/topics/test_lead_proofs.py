import asyncio

from tailrace_broker.topics.lead_proofs import LeadProofs


async def asking(proofs: LeadProofs, range_id: int) -> "asyncio.Task[bool]":
    task = asyncio.get_running_loop().create_task(proofs.prove(range_id))
    await asyncio.sleep(0)
    return task


async def test_who_asks_while_a_round_is_under_way_shares_the_next() -> None:
    asked: list[int] = []
    proofs = LeadProofs(asked.append)
    first = await asking(proofs, 7)
    second, third = await asking(proofs, 7), await asking(proofs, 7)
    assert asked == [7]

    proofs.proven(7)
    assert asked == [7, 7]
    assert await first
    assert not second.done()

    proofs.proven(7)
    assert await second
    assert await third
    proofs.proven(7)  # which nobody waits for
    assert asked == [7, 7]


async def test_a_leader_that_is_deposed_has_proven_nothing() -> None:
    proofs = LeadProofs(lambda _: None)
    first, second, other = [await asking(proofs, each) for each in (7, 7, 8)]

    proofs.ended(7)
    assert [await first, await second] == [False, False]
    assert not other.done()
    proofs.proven(8)
    assert await other


async def test_a_round_that_nobody_answers_proves_nothing() -> None:
    asked: list[int] = []
    proofs = LeadProofs(asked.append, seconds=0.01)
    assert not await proofs.prove(7)
    assert not await proofs.prove(7)
    assert not any(proofs._under_way[7] or proofs._next[7])  # nobody waits any more
    proofs.proven(7)  # the answer of the first round comes late
    assert asked == [7, 7]  # for those who came after it, who have given up, too
    assert not any(proofs._under_way[7])
