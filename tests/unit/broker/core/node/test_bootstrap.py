"""Bootstrap, message by message: brokers with an empty disk each, and one that asks them all."""

import random
from collections import Counter
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.core.node.bootstrap import ASK_AGAIN_MS, GIVE_UP_MS, Bootstrap, voter_count
from tailrace_broker.core.node.events import Answer, AskBootstrap
from tailrace_broker.core.raft.events import Send
from tailrace_broker.model.agreement import (
    INITIAL_ID,
    BlockId,
    Configuration,
    DiskId,
    Kept,
    Reserved,
    Snapshot,
    Term,
)
from tailrace_broker.model.messages import BootstrapAnswered, BootstrapAsked, Bootstrapped

REQUEST = 5


def me(ordinal: int, generation: int = 0) -> BootstrapAnswered:
    disk = DiskId(ordinal, UUID(int=100 * generation + ordinal))
    return BootstrapAnswered(disk, UUID(int=0), 1, UUID(int=1000 + ordinal), is_empty=True)


def bootstrap(ordinal: int = 0, *, reserved: UUID | None = None, generation: int = 0) -> Bootstrap:
    nothing = BlockId(-1, -1)
    kept = Kept(Term(0), None, (), nothing, nothing, reserved)
    return Bootstrap(me(ordinal, generation), kept, random.Random(ordinal), Counter())


def await_it(broker: Bootstrap, found: UUID) -> Answer | None:
    """Asked for that bootstrap, it notes it and answers; the answer to who asked for its own."""
    asked = BootstrapAsked(me(2).sender, found)
    assert broker.asked(asked) == Reserved(found)
    *gave_way, answered = broker.noted(asked)
    assert isinstance(answered, Send)
    assert answered.ordinal == 2
    assert isinstance(answered.message, BootstrapAnswered)
    assert answered.message.is_empty
    answer = gave_way[0] if gave_way else None
    assert answer is None or isinstance(answer, Answer)
    return answer


def begun(founder: Bootstrap, broker_count: int = 3) -> UUID:
    """The id of the bootstrap that it has begun."""
    sends, answer = founder.begin(AskBootstrap(REQUEST, broker_count, 1), 0)
    assert answer is None
    assert [each.ordinal for each in sends] == list(range(broker_count))
    return asked_in(sends)


def asked_in(sends: list[Send]) -> UUID:
    [bootstrap] = {m.bootstrap for m in (s.message for s in sends) if isinstance(m, BootstrapAsked)}
    return bootstrap


def initial_of(founder: Bootstrap, broker_count: int = 3) -> Snapshot:
    found = begun(founder, broker_count)
    answered = [
        founder.answered(replace(me(each), bootstrap=found)) for each in range(broker_count)
    ]
    initial, _ = answered[-1]
    assert initial is not None
    return initial


def reason_of(answer: Answer | None) -> str:
    assert answer is not None
    assert answer.request == REQUEST
    assert answer.refusal is not None
    return answer.refusal.reason


def test_when_all_have_answered_there_is_an_initial_state() -> None:
    initial = initial_of(bootstrap())

    state = decode_state(initial.state)
    assert initial.id == INITIAL_ID
    assert initial.configuration.voters == tuple(me(each).sender for each in range(3))
    assert (state.broker_count, state.factor, sorted(state.brokers)) == (3, 1, [0, 1, 2])
    assert [each.natural_leader for each in state.ranges.values()] == [0, 1, 2]


def test_so_many_of_them_vote() -> None:
    assert [voter_count(each) for each in (1, 2, 3, 8, 9, 48)] == [1, 1, 3, 3, 5, 5]
    assert len(initial_of(bootstrap(), 2).configuration.voters) == 1


def test_the_last_answer_counts_once_and_whatever_its_order() -> None:
    founder = bootstrap()
    found = begun(founder)

    for ordinal in (2, 2, 0):
        assert founder.answered(replace(me(ordinal), bootstrap=found)) == (None, None)
    assert founder.answered(replace(me(1), bootstrap=UUID(int=3))) == (None, None)
    initial, _ = founder.answered(replace(me(1), bootstrap=found))
    assert initial is not None
    assert founder.request_of(found) == REQUEST
    assert founder.request_of(found) is None


def test_who_has_not_answered_is_asked_again_and_named_at_last() -> None:
    founder = bootstrap()
    found = begun(founder)
    founder.answered(replace(me(1), bootstrap=found))

    assert founder.wake_at_ms == ASK_AGAIN_MS
    assert founder.wake(ASK_AGAIN_MS - 1) == ([], None)
    sends, _ = founder.wake(ASK_AGAIN_MS)
    assert [each.ordinal for each in sends] == [0, 2]
    sends, answer = founder.wake(GIVE_UP_MS)
    assert sends == []
    assert reason_of(answer) == "broker-unreachable"
    assert "broker 0, 2 did not answer" in str(answer)
    assert not founder.wake_at_ms
    assert founder.wake(GIVE_UP_MS + 1) == ([], None)


def test_one_that_is_not_empty_is_a_veto() -> None:
    founder = bootstrap()
    found = begun(founder)

    initial, answer = founder.answered(replace(me(2), bootstrap=found, is_empty=False))

    assert initial is None
    assert reason_of(answer) == "ring-exists"


def test_who_was_not_asked_does_not_count() -> None:
    founder = bootstrap()
    found = begun(founder)

    for ordinal in (0, 1, 3):
        assert founder.answered(replace(me(ordinal), bootstrap=found)) == (None, None)


def test_an_initial_state_of_another_version_is_taken_for_none() -> None:
    founder = bootstrap()
    found = begun(founder)
    initial = Snapshot(INITIAL_ID, Configuration((me(2).sender,)), b"")
    shown = replace(me(2), bootstrap=found, is_empty=False, initial=initial)

    assert not founder.is_named(Bootstrapped(me(2).sender, found, initial))
    await_it(founder, found)
    assert not founder.is_named(Bootstrapped(me(2).sender, found, initial))
    assert reason_of(founder.answered(shown)[1]) == "ring-exists"


def test_wiped_brokers_found_nothing() -> None:
    """Two of three have new disks; the third is still where the ring began."""
    initial = initial_of(bootstrap())
    founder = bootstrap(0, generation=1)
    found = begun(founder)

    shown = replace(me(2), bootstrap=found, is_empty=False, initial=initial)
    assert reason_of(founder.answered(shown)[1]) == "ring-exists"


def test_another_size_does_not_finish_what_began() -> None:
    initial = initial_of(bootstrap())
    founder = bootstrap(0)
    found = begun(founder, 2)

    shown = replace(me(1), bootstrap=found, is_empty=False, initial=initial)
    assert reason_of(founder.answered(shown)[1]) == "ring-exists"


def test_a_bootstrap_whose_founder_died_is_finished() -> None:
    """Broker 2 has the initial state, and nobody else."""
    initial = initial_of(bootstrap())
    founder = bootstrap(1)
    found = begun(founder)
    first = decode_state(initial.state).cluster_id
    shown = replace(me(2), bootstrap=found, is_empty=False, initial=initial)

    assert founder.answered(shown) == (None, None)
    sends, _ = founder.wake(1)
    assert [each.ordinal for each in sends] == [0, 1]
    assert asked_in(sends) == first
    assert founder.answered(replace(me(0), bootstrap=first)) == (None, None)
    assert founder.answered(replace(shown, bootstrap=first)) == (None, None)
    assert founder.answered(replace(me(1), bootstrap=first)) == (initial, None)


def test_it_is_not_finished_with_a_disk_that_it_does_not_name() -> None:
    initial = initial_of(bootstrap())
    founder = bootstrap(1)
    found = begun(founder)
    first = decode_state(initial.state).cluster_id
    founder.answered(replace(me(2), bootstrap=found, is_empty=False, initial=initial))
    founder.answered(replace(me(0), bootstrap=first))

    initial_now, answer = founder.answered(replace(me(1, 1), bootstrap=first))
    assert initial_now is None
    assert reason_of(answer) == "ring-exists"


def made_by(founder: Bootstrap) -> Bootstrapped:
    """What all have answered for, and broker 0 is asked to take."""
    found = begun(founder)
    for ordinal in (2, 0, 1):
        assert founder.answered(replace(me(ordinal), bootstrap=found)) == (None, None)
    assert founder.wake_at_ms == 0
    sends, answer = founder.wake(1)
    assert (answer, [each.ordinal for each in sends]) == (None, [0, 0])
    assert asked_in(sends[:1]) == found
    founded = sends[1].message
    assert isinstance(founded, Bootstrapped)
    assert founded.bootstrap == found
    return founded


def test_what_another_than_broker_0_has_made_broker_0_takes_first() -> None:
    founder, first = bootstrap(1), bootstrap()
    founded = made_by(founder)
    await_it(first, founded.bootstrap)

    assert first.is_named(founded)
    assert not founder.is_taken
    assert founder.answered(replace(me(0), bootstrap=founded.bootstrap)) == (None, None)
    assert founder.request_of(UUID(int=0)) is None
    assert founder.request_of(founded.bootstrap) == REQUEST


def test_the_founder_takes_what_broker_0_shows_that_it_has_taken() -> None:
    founder = bootstrap(1)
    founded = made_by(founder)
    found, initial = founded.bootstrap, founded.initial
    shown = replace(me(0), bootstrap=found, is_empty=False, initial=initial)

    assert founder.answered(shown) == (None, None)
    sends, _ = founder.wake(2)
    assert [each.ordinal for each in sends] == [1, 2]
    assert founder.answered(replace(me(1), bootstrap=found)) == (None, None)
    assert founder.answered(replace(me(2), bootstrap=found)) == (initial, None)


def test_when_broker_0_has_taken_another_there_is_a_ring() -> None:
    founder = bootstrap(1)
    founded = made_by(founder)
    other = initial_of(bootstrap(), 1)

    _, answer = founder.answered(
        replace(me(0), bootstrap=founded.bootstrap, is_empty=False, initial=other)
    )

    assert reason_of(answer) == "ring-exists"


def test_when_broker_0_says_nothing_it_is_not_known_what_it_has_taken() -> None:
    founder = bootstrap(1)
    made_by(founder)

    _, answer = founder.wake(GIVE_UP_MS)

    assert reason_of(answer) == "founding-under-way"


def test_an_attempt_gives_way_to_another_with_a_greater_id() -> None:
    founder = bootstrap()
    found = begun(founder)
    greater, less = UUID(int=found.int + 1), UUID(int=found.int - 1)

    lesser = BootstrapAsked(me(2).sender, less)
    assert founder.asked(lesser) is None
    assert founder.noted(lesser) == []
    assert await_it(founder, found) is None
    assert reason_of(await_it(founder, greater)) == "founding-under-way"
    assert await_it(founder, less) is None
    assert founder.answered(replace(me(1), bootstrap=found)) == (None, None)


def test_what_the_founder_gave_up_it_awaits_when_broker_0_shows_that_it_came_to_be() -> None:
    founder = bootstrap(1)
    given_up = made_by(founder)
    founder.begin(AskBootstrap(REQUEST, 3, 1), 10)
    [*_, again] = founder.wake(10 + ASK_AGAIN_MS)[0]
    assert isinstance(again.message, BootstrapAsked)
    shown = replace(
        me(0), bootstrap=again.message.bootstrap, is_empty=False, initial=given_up.initial
    )

    assert founder.answered(shown) == (None, None)
    assert await_it(founder, given_up.bootstrap) is None


def test_who_has_taken_an_initial_state_is_silent_until_it_is_on_disk() -> None:
    """Who saw it could keep it, when this disk has lost it and takes part in another bootstrap."""
    initial = initial_of(bootstrap())
    cluster = decode_state(initial.state).cluster_id
    asked = BootstrapAsked(me(1).sender, cluster)
    broker = bootstrap(reserved=cluster)
    broker.initial = initial

    assert broker.asked(asked) is None
    assert broker.noted(asked) == []
    broker.is_member = True
    shown = replace(me(0), bootstrap=cluster, is_empty=False, initial=initial)
    assert broker.asked(asked) == Send(1, shown)


def test_asked_again_the_first_attempt_gives_way() -> None:
    founder = bootstrap()
    begun(founder)

    sends, answer = founder.begin(AskBootstrap(6, 3, 1), 10)

    assert len(sends) == 3
    assert reason_of(answer) == "founding-under-way"


def test_an_initial_state_is_taken_by_who_awaits_it_with_the_disk_that_it_names() -> None:
    initial = initial_of(bootstrap())
    cluster = decode_state(initial.state).cluster_id
    founded = Bootstrapped(me(0).sender, cluster, initial)

    assert bootstrap(1, reserved=cluster).is_named(founded)
    assert not bootstrap(1).is_named(founded)
    assert not bootstrap(1, reserved=UUID(int=8)).is_named(founded)
    assert not bootstrap(1, reserved=cluster, generation=1).is_named(founded)
    assert not bootstrap(3, reserved=cluster).is_named(founded)
