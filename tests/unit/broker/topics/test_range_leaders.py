from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.commands import apply_command, initial_state
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.commands import CreateTopic, Lead, Stamped
from tailrace_broker.model.errors import NoLeaderError, NotLeaderError
from tailrace_broker.model.ring_state import Registration, RingState
from tailrace_broker.model.topic import Partition, TopicSettings
from tailrace_broker.topics.range_leaders import RangeRoles


async def is_led(_: int) -> bool:
    return True


def registration(ordinal: int) -> Registration:
    return Registration(ordinal, 1, UUID(int=ordinal), 1, UUID(int=100 + ordinal), "disk")


def ring(*, broker_count: int = 3) -> RingState:
    """All its ranges are led by their natural leaders; it has a topic."""
    brokers = [registration(ordinal) for ordinal in range(broker_count)]
    state = initial_state(UUID(int=7), broker_count, 1, brokers)
    created = CreateTopic("t", UUID(int=9), TopicSettings(partitions_per_range=1))
    state = apply_command(state, Stamped(1, created))
    for each in state.ranges.values():
        command = Lead(each.id, each.epoch, each.natural_leader, registration=1)
        state = apply_command(state, Stamped(10 + each.id, command))
    return state


def answer(state: RingState, ordinal: int, partition: int) -> object:
    """What a broker answers who wants a partition; None: it has it."""
    topic = topic_of(state, state.topics["t"])
    return answer_of(state, state.brokers[ordinal], topic.partitions[partition])


def answer_of(state: RingState, mine: Registration | None, partition: Partition) -> object:
    roles = RangeRoles(lambda other: f"http://b{other}:9250", lambda *_: None, is_led)
    roles.apply(state, mine)
    elsewhere = roles.of(partition.range_id).elsewhere
    return None if elsewhere is None else elsewhere("t", partition.partition)


def test_a_broker_takes_over_in_an_epoch_with_the_number_of_the_leader_before() -> None:
    state = ring()
    mine = state.brokers[0]
    (owner,) = (each for each in state.ranges.values() if each.natural_leader == 2)
    taken_over = replace(owner, epoch=2, leader=owner.replica_of(mine))
    roles = RangeRoles(lambda other: f"http://b{other}:9250", lambda *_: None, is_led)
    roles.apply(state, mine)
    assert roles.of(owner.id).elsewhere is not None

    roles.apply(replace(state, ranges={**state.ranges, owner.id: taken_over}), mine)

    assert roles.of(owner.id).elsewhere is None


def test_each_broker_has_what_it_leads_and_names_the_leader_of_the_rest() -> None:
    state = ring()
    leaders = [
        state.ranges[each.range_id].natural_leader
        for each in topic_of(state, state.topics["t"]).partitions
    ]
    for ordinal in range(3):
        for partition, leader in enumerate(leaders):
            found = answer(state, ordinal, partition)
            if leader == ordinal:
                assert found is None
            else:
                assert isinstance(found, NotLeaderError)
                assert found.members == {
                    "topic": "t",
                    "partition": partition,
                    "leader": leader,
                    "leaderUrl": f"http://b{leader}:9250",
                }
                assert (found.retriable, found.write_attempted) == (True, False)


def test_a_range_without_a_leader_is_reported() -> None:
    state = ring(broker_count=1)
    state = replace(state, ranges={0: replace(state.ranges[0], leader=None)})
    found = answer(state, 0, 0)

    assert isinstance(found, NoLeaderError)
    assert found.members == {"topic": "t", "partition": 0, "range": 0}
    assert (found.retriable, found.write_attempted) == (True, False)


def test_what_an_earlier_process_of_this_broker_led_nobody_leads() -> None:
    state = ring(broker_count=1)
    state = replace(state, brokers={0: replace(state.brokers[0], number=2)})

    assert isinstance(answer(state, 0, 0), NoLeaderError)


def test_a_process_that_is_not_registered_leads_nothing() -> None:
    state = ring(broker_count=1)
    topic = topic_of(state, state.topics["t"])
    found = answer_of(state, None, topic.partitions[0])

    assert isinstance(found, NotLeaderError)


@pytest.mark.parametrize(
    ("complete", "replicas", "reader"),
    [((0, 1), (0, 1), 0), ((1,), (0, 1), 1), ((), (1, 0), None), ((), (), None)],
)
def test_a_sealed_partition_is_read_from_a_whole_copy(
    complete: tuple[int, ...], replicas: tuple[int, ...], reader: int | None
) -> None:
    state = ring(broker_count=2)
    sealed = replace(
        state.ranges[0], leader=None, sealed_epoch=1, complete=complete, replicas=replicas
    )
    state = replace(state, ranges={**state.ranges, 0: sealed})
    found = answer(state, 0, 0)

    if reader is None:
        assert isinstance(found, NoLeaderError)
    elif reader == 0:
        assert found is None
    else:
        assert isinstance(found, NotLeaderError)
        assert found.members["leader"] == reader


def test_a_role_changes_only_with_its_range() -> None:
    class Log:
        change_count = 0
        settings = TopicSettings()

        def on_role_changed(self) -> None:
            self.change_count += 1

        def on_shortage(self) -> None:
            raise AssertionError

        def flush(self) -> None:
            raise AssertionError

    state = ring(broker_count=2)
    given_up: list[tuple[int, int]] = []
    roles = RangeRoles(
        lambda _: "http://b:9250",
        lambda range_id, epoch: given_up.append((range_id, epoch)),
        is_led,
    )
    roles.apply(state, state.brokers[0])
    role, log = roles.of(0), Log()
    role.add(log)
    other = replace(state.ranges[1], epoch=9)
    state = replace(state, ranges={**state.ranges, 1: other})
    roles.apply(state, state.brokers[0])
    assert (log.change_count, role.epoch) == (0, 1)

    later = replace(state.ranges[0], epoch=2)
    state = replace(state, ranges={**state.ranges, 0: later})
    roles.apply(state, state.brokers[0])
    assert (log.change_count, role.epoch) == (1, 2)
    assert roles.of(0) is role

    for epoch in (1, 2, 2):
        role.give_up(epoch)
    assert given_up == [(0, 2)]  # once, and no epoch that has ended


def test_a_copy_of_a_sealed_range_is_served_by_who_is_registered() -> None:
    state = ring(broker_count=1)
    partition = topic_of(state, state.topics["t"]).partitions[0]
    sealed = replace(state.ranges[0], leader=None, sealed_epoch=1, complete=(0,))
    state = replace(state, ranges={0: sealed})
    roles = RangeRoles(lambda other: f"http://b{other}:9250", lambda *_: None, is_led)
    roles.apply(state, None)
    assert roles.of(partition.range_id).elsewhere is not None

    roles.apply(state, state.brokers[0])
    assert roles.of(partition.range_id).elsewhere is None


def test_a_range_that_is_gone_is_led_by_nobody() -> None:
    """A broker that was away for long may have led it in the last state that it knew."""
    state = ring()
    roles = RangeRoles(lambda other: f"http://b{other}:9250", lambda *_: None, is_led)
    roles.apply(state, state.brokers[0])
    assert roles.of(0).epoch == 1

    roles.apply(
        replace(state, ranges={key: each for key, each in state.ranges.items() if key}),
        state.brokers[0],
    )

    elsewhere = roles.of(0).elsewhere
    assert roles.of(0).epoch is None
    assert elsewhere is not None
    assert isinstance(elsewhere("t", 0), NoLeaderError)
