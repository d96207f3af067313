"""Bootstrap, message by message: brokers with an empty disk each, and one that asks them all."""

import random
from collections import Counter
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.core.node.bootstrap import ASK_AGAIN_MS, GIVE_UP_MS, Bootstrap, voter_count
from tailrace_broker.core.node.events import (
    Answer,
    AppliedUpTo,
    AskBootstrap,
    BootstrapEffect,
    BootstrapEvent,
    KeepReserved,
    Noted,
    Take,
)
from tailrace_broker.core.raft.events import Send, Woken
from tailrace_broker.core.raft.state import NEVER_MS
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


def step(broker: Bootstrap, event: BootstrapEvent, now_ms: int = 0) -> list[BootstrapEffect]:
    effects = broker.step(event, now_ms)
    broker.validate()
    return effects


def await_it(broker: Bootstrap, found: UUID) -> Answer | None:
    """Asked for that bootstrap, it notes it and answers; the answer to who asked for its own."""
    asked = BootstrapAsked(me(2).sender, found)
    assert step(broker, asked) == [KeepReserved(Reserved(found), asked)]
    *gave_way, answered = step(broker, Noted(asked))
    assert isinstance(answered, Send)
    assert answered.ordinal == 2
    assert isinstance(answered.message, BootstrapAnswered)
    assert answered.message.is_empty
    answer = gave_way[0] if gave_way else None
    assert answer is None or isinstance(answer, Answer)
    return answer


def sends_in(effects: list[BootstrapEffect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def begun(founder: Bootstrap, broker_count: int = 3) -> UUID:
    """The id of the bootstrap that it has begun."""
    effects = step(founder, AskBootstrap(REQUEST, broker_count, 1))
    sends = sends_in(effects)
    assert sends == effects
    assert [each.ordinal for each in sends] == list(range(broker_count))
    return asked_in(sends)


def takes(broker: Bootstrap, message: Bootstrapped) -> bool:
    """Whether it takes the initial state in the message."""
    effects = step(broker, message)
    assert effects in ([], [Take(message.initial)])
    return bool(effects)


def asked_in(sends: list[Send]) -> UUID:
    [bootstrap] = {m.bootstrap for m in (s.message for s in sends) if isinstance(m, BootstrapAsked)}
    return bootstrap


def initial_of(founder: Bootstrap, broker_count: int = 3) -> Snapshot:
    found = begun(founder, broker_count)
    effects: list[BootstrapEffect] = []
    for ordinal in range(broker_count):
        effects = step(founder, replace(me(ordinal), bootstrap=found))
    [taken] = effects
    assert isinstance(taken, Take)
    return taken.initial


def answers_when_done(founder: Bootstrap) -> list[BootstrapEffect]:
    """What it answers once a block is applied, and not before."""
    assert step(founder, AppliedUpTo(INITIAL_ID)) == []
    return step(founder, AppliedUpTo(BlockId(1, 1)))


def reason_of(effects: list[BootstrapEffect] | Answer | None) -> str:
    [answer] = effects if isinstance(effects, list) else [effects]
    assert isinstance(answer, Answer)
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
        assert step(founder, replace(me(ordinal), bootstrap=found)) == []
    assert step(founder, replace(me(1), bootstrap=UUID(int=3))) == []
    [taken] = step(founder, replace(me(1), bootstrap=found))
    assert isinstance(taken, Take)
    assert answers_when_done(founder) == [Answer(REQUEST)]
    assert answers_when_done(founder) == []


def test_who_has_not_answered_is_asked_again_and_named_at_last() -> None:
    founder = bootstrap()
    found = begun(founder)
    step(founder, replace(me(1), bootstrap=found))

    assert founder.wake_at_ms == ASK_AGAIN_MS
    assert step(founder, Woken(), ASK_AGAIN_MS - 1) == []
    sends = sends_in(step(founder, Woken(), ASK_AGAIN_MS))
    assert [each.ordinal for each in sends] == [0, 2]
    answer = step(founder, Woken(), GIVE_UP_MS)
    assert reason_of(answer) == "broker-unreachable"
    assert "broker 0, 2 did not answer" in str(answer)
    assert founder.wake_at_ms == NEVER_MS
    assert step(founder, Woken(), GIVE_UP_MS + 1) == []


def test_one_that_is_not_empty_is_a_veto() -> None:
    founder = bootstrap()
    found = begun(founder)

    veto = step(founder, replace(me(2), bootstrap=found, is_empty=False))

    assert reason_of(veto) == "ring-exists"


def test_who_was_not_asked_does_not_count() -> None:
    founder = bootstrap()
    found = begun(founder)

    for ordinal in (0, 1, 3):
        assert step(founder, replace(me(ordinal), bootstrap=found)) == []


def test_an_initial_state_of_another_version_is_taken_for_none() -> None:
    founder = bootstrap()
    found = begun(founder)
    initial = Snapshot(INITIAL_ID, Configuration((me(2).sender,)), b"")
    shown = replace(me(2), bootstrap=found, is_empty=False, initial=initial)

    assert not takes(founder, Bootstrapped(me(2).sender, found, initial))
    await_it(founder, found)
    assert not takes(founder, Bootstrapped(me(2).sender, found, initial))
    assert reason_of(step(founder, shown)) == "ring-exists"


def test_wiped_brokers_found_nothing() -> None:
    """Two of three have new disks; the third is still where the ring began."""
    initial = initial_of(bootstrap())
    founder = bootstrap(0, generation=1)
    found = begun(founder)

    shown = replace(me(2), bootstrap=found, is_empty=False, initial=initial)
    assert reason_of(step(founder, shown)) == "ring-exists"


def test_another_size_does_not_finish_what_began() -> None:
    initial = initial_of(bootstrap())
    founder = bootstrap(0)
    found = begun(founder, 2)

    shown = replace(me(1), bootstrap=found, is_empty=False, initial=initial)
    assert reason_of(step(founder, shown)) == "ring-exists"


def test_a_bootstrap_whose_founder_died_is_finished() -> None:
    """Broker 2 has the initial state, and nobody else."""
    initial = initial_of(bootstrap())
    founder = bootstrap(1)
    found = begun(founder)
    first = decode_state(initial.state).cluster_id
    shown = replace(me(2), bootstrap=found, is_empty=False, initial=initial)

    assert step(founder, shown) == []
    sends = sends_in(step(founder, Woken(), 1))
    assert [each.ordinal for each in sends] == [0, 1]
    assert asked_in(sends) == first
    assert step(founder, replace(me(0), bootstrap=first)) == []
    assert step(founder, replace(shown, bootstrap=first)) == []
    assert step(founder, replace(me(1), bootstrap=first)) == [Take(initial)]


def test_it_is_not_finished_with_a_disk_that_it_does_not_name() -> None:
    initial = initial_of(bootstrap())
    founder = bootstrap(1)
    found = begun(founder)
    first = decode_state(initial.state).cluster_id
    step(founder, replace(me(2), bootstrap=found, is_empty=False, initial=initial))
    step(founder, replace(me(0), bootstrap=first))

    assert reason_of(step(founder, replace(me(1, 1), bootstrap=first))) == "ring-exists"


def made_by(founder: Bootstrap) -> Bootstrapped:
    """What all have answered for, and broker 0 is asked to take."""
    found = begun(founder)
    for ordinal in (2, 0, 1):
        assert step(founder, replace(me(ordinal), bootstrap=found)) == []
    assert founder.wake_at_ms == 0
    sends = sends_in(step(founder, Woken(), 1))
    assert [each.ordinal for each in sends] == [0, 0]
    assert asked_in(sends[:1]) == found
    founded = sends[1].message
    assert isinstance(founded, Bootstrapped)
    assert founded.bootstrap == found
    return founded


def test_what_another_than_broker_0_has_made_broker_0_takes_first() -> None:
    founder, first = bootstrap(1), bootstrap()
    founded = made_by(founder)
    await_it(first, founded.bootstrap)

    assert takes(first, founded)
    assert not founder.is_taken
    assert step(founder, replace(me(0), bootstrap=founded.bootstrap)) == []
    await_it(founder, founded.bootstrap)
    assert takes(founder, founded)
    assert answers_when_done(founder) == [Answer(REQUEST)]


def test_the_founder_takes_what_broker_0_shows_that_it_has_taken() -> None:
    founder = bootstrap(1)
    founded = made_by(founder)
    found, initial = founded.bootstrap, founded.initial
    shown = replace(me(0), bootstrap=found, is_empty=False, initial=initial)

    assert step(founder, shown) == []
    sends = sends_in(step(founder, Woken(), 2))
    assert [each.ordinal for each in sends] == [1, 2]
    assert step(founder, replace(me(1), bootstrap=found)) == []
    assert step(founder, replace(me(2), bootstrap=found)) == [Take(initial)]


def test_when_broker_0_has_taken_another_there_is_a_ring() -> None:
    founder = bootstrap(1)
    founded = made_by(founder)
    other = initial_of(bootstrap(), 1)

    answer = step(
        founder, replace(me(0), bootstrap=founded.bootstrap, is_empty=False, initial=other)
    )

    assert reason_of(answer) == "ring-exists"


def test_when_broker_0_says_nothing_it_is_not_known_what_it_has_taken() -> None:
    founder = bootstrap(1)
    made_by(founder)

    answer = step(founder, Woken(), GIVE_UP_MS)

    assert reason_of(answer) == "founding-under-way"


def test_an_attempt_gives_way_to_another_with_a_greater_id() -> None:
    founder = bootstrap()
    found = begun(founder)
    greater, less = UUID(int=found.int + 1), UUID(int=found.int - 1)

    lesser = BootstrapAsked(me(2).sender, less)
    assert step(founder, lesser) == []
    assert step(founder, Noted(lesser)) == []
    assert await_it(founder, found) is None
    assert reason_of(await_it(founder, greater)) == "founding-under-way"
    assert await_it(founder, less) is None
    assert step(founder, replace(me(1), bootstrap=found)) == []


def test_what_the_founder_gave_up_it_awaits_when_broker_0_shows_that_it_came_to_be() -> None:
    founder = bootstrap(1)
    given_up = made_by(founder)
    step(founder, AskBootstrap(REQUEST, 3, 1), 10)
    [*_, again] = sends_in(step(founder, Woken(), 10 + ASK_AGAIN_MS))
    assert isinstance(again.message, BootstrapAsked)
    shown = replace(
        me(0), bootstrap=again.message.bootstrap, is_empty=False, initial=given_up.initial
    )

    assert step(founder, shown) == []
    assert await_it(founder, given_up.bootstrap) is None


def test_who_has_taken_an_initial_state_is_silent_until_it_is_on_disk() -> None:
    """Who saw it could keep it, when this disk has lost it and takes part in another bootstrap."""
    initial = initial_of(bootstrap())
    cluster = decode_state(initial.state).cluster_id
    asked = BootstrapAsked(me(1).sender, cluster)
    broker = bootstrap(reserved=cluster)
    broker.initial = initial

    assert step(broker, asked) == []
    assert step(broker, Noted(asked)) == []
    broker.installed(initial)
    shown = replace(me(0), bootstrap=cluster, is_empty=False, initial=initial)
    assert step(broker, asked) == [Send(1, shown)]


def test_asked_again_the_first_attempt_gives_way() -> None:
    founder = bootstrap()
    begun(founder)

    *sends, answer = step(founder, AskBootstrap(6, 3, 1), 10)

    assert len(sends_in(sends)) == 3
    assert reason_of([answer]) == "founding-under-way"


def test_an_initial_state_is_taken_by_who_awaits_it_with_the_disk_that_it_names() -> None:
    initial = initial_of(bootstrap())
    cluster = decode_state(initial.state).cluster_id
    founded = Bootstrapped(me(0).sender, cluster, initial)

    assert takes(bootstrap(1, reserved=cluster), founded)
    assert not takes(bootstrap(1), founded)
    assert not takes(bootstrap(1, reserved=UUID(int=8)), founded)
    assert not takes(bootstrap(1, reserved=cluster, generation=1), founded)
    assert not takes(bootstrap(3, reserved=cluster), founded)
