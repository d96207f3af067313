"""A coordinator whose group another broker may coordinate by now answers nothing of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.model.errors import GroupNotFoundError, NoLeaderError
from tailrace_broker.model.group import Confirmation, Subscription
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import Appends

NOTHING = Confirmation(0)


class Proofs:
    """Whether the replicas of the groups' log answer; `count`: how often they were asked."""

    def __init__(self) -> None:
        self.count = 0
        self.are_given = True

    async def prove(self) -> bool:
        """Have a round of frames answered, or not."""
        self.count += 1
        return self.are_given


@asynccontextmanager
async def coordinator(root: Path) -> AsyncIterator[tuple[LocalBroker, Proofs, PartitionLog]]:
    """Yield a broker with a consumer and one record, the proofs of its lead, the groups' log."""
    async with started_broker(root) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        await Appends(broker.hosted("t").log_of(0)).batch([b"0"])
        await broker.groups.register(Subscription("c", "g", ("t",), "startFromEarliest"))
        partition = broker.groups.view("g").coordinator
        log = broker._topics.internal["__groups"].log_of(partition)
        proofs = Proofs()
        log.role.commits_alone, log.role._prove = False, proofs.prove
        yield broker, proofs, log
        log.role.commits_alone = True


async def test_a_delivery_waits_until_it_is_proven_that_the_coordinator_is_the_only_one(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as (broker, proofs, _):
        groups = broker.groups
        poll = await groups.poll("c", NOTHING, 0)
        proofs.are_given = False
        with pytest.raises(NoLeaderError, match="not sure"):
            await groups.deliver(poll, [1])
        assert broker.groups.view("g").group.members["c"].delivery is None

        proofs.are_given = True
        poll = await groups.poll("c", NOTHING, 0)
        assert await groups.deliver(poll, [1]) is not None
        assert proofs.count == 2


async def test_who_is_deposed_while_it_proves_that_it_leads_delivers_nothing(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as (broker, _, log):
        epoch = log.role.epoch

        async def deposed() -> bool:
            log.role.epoch = None
            return True

        poll = await broker.groups.poll("c", NOTHING, 0)
        log.role._prove = deposed
        with pytest.raises(NoLeaderError):
            await broker.groups.deliver(poll, [1])
        log.role.epoch = epoch
        assert broker.groups.view("g").group.members["c"].delivery is None


async def test_a_coordinator_whose_log_is_being_sealed_delivers_nothing(tmp_path: Path) -> None:
    """Others coordinate its groups when the step is committed, which it may hear late."""

    async with coordinator(tmp_path) as (broker, proofs, log):
        poll = await broker.groups.poll("c", NOTHING, 0)
        log.role.is_held = log.role.is_in_step = True
        with pytest.raises(NoLeaderError, match="sealed"):
            await broker.groups.deliver(poll, [1])
        assert proofs.count == 0
        log.role.is_in_step = False  # it hands the range over
        assert await broker.groups.deliver(poll, [1]) is not None
        log.role.is_held = False


async def test_a_commit_that_appends_nothing_is_proven(tmp_path: Path) -> None:
    """What it confirms is stored already; its append was a proof."""

    async with coordinator(tmp_path) as (broker, proofs, _):
        poll = await broker.groups.poll("c", NOTHING, 0)
        number = await broker.groups.deliver(poll, [1])
        proofs.count = 0
        await broker.groups.commit("c", Confirmation(number))
        assert proofs.count == 0

        await broker.groups.commit("c", Confirmation(number))
        assert proofs.count == 1
        proofs.are_given = False
        with pytest.raises(NoLeaderError, match="not sure"):
            await broker.groups.commit("c", Confirmation(number))


async def test_the_state_of_groups_is_proven(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as (broker, proofs, _):
        await broker.groups.check_surely_led()
        await broker.groups.check_surely_led("g")
        assert proofs.count == 2
        proofs.are_given = False
        for group in ("g", None):
            with pytest.raises(NoLeaderError, match="not sure"):
                await broker.groups.check_surely_led(group)


async def test_nobody_is_asked_for_a_group_that_cannot_be_there(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.groups.check_surely_led()
        with pytest.raises(GroupNotFoundError):
            await broker.groups.check_surely_led("g")
