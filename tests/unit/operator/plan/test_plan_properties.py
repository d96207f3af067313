"""What no plan may do, whatever happens around the operator, and where it always arrives."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_operator.plan.actions import Found, RestartBroker
from tailrace_operator.plan.drift import drift
from tailrace_operator.plan.manifests import children
from tailrace_operator.plan.observed import ChildName
from tailrace_operator.plan.plan import next_action
from tests.support.operator.kubernetes_world import BAD_IMAGE, IMAGE, STATEFUL_SET, World

Event = Callable[[World], object]
ordinals = st.integers(0, 2)


def delete_child(world: World, index: int) -> None:
    if world.children:
        child = list(world.children)[index % len(world.children)]
        if child != STATEFUL_SET:  # its pods would go too
            del world.children[child]


def edit_child(world: World, index: int) -> None:
    """Somebody edits an object by hand."""
    if world.children:
        child = list(world.children)[index % len(world.children)]
        world.children[child]["metadata"]["labels"]["app.kubernetes.io/name"] = "mine"


specs = st.fixed_dictionaries(
    {},
    optional={
        "image": st.sampled_from([IMAGE, "tailrace/broker:0.1.1", BAD_IMAGE]),
        "settings": st.sampled_from([{}, {"ioThreads": 4}, {"cacheSize": "64Mi"}]),
        "storage": st.sampled_from([{"size": "10Gi"}, {"size": "20Gi"}]),
        "networkPolicy": st.booleans(),
        "zones": st.sampled_from([[], ["a", "b", "c"]]),
        "deletionPolicy": st.sampled_from(["Retain", "Delete"]),
        "brokers": st.integers(1, 6),
    },
)


def events_of() -> st.SearchStrategy[Event]:
    """The operator and everyone else, in any order."""

    def with_ordinal(act: Callable[[World, int], object]) -> st.SearchStrategy[Event]:
        return ordinals.map(lambda ordinal: lambda world: act(world, ordinal))

    return st.one_of(
        st.just(World.work),
        st.just(World.work),
        st.just(World.make_pods),
        with_ordinal(World.step_pod),
        with_ordinal(World.step_pod),
        with_ordinal(World.end_pod),
        with_ordinal(World.falter),
        with_ordinal(World.lose_disk),
        st.integers(0, 5).map(lambda ordinal: lambda world: world.delete_claim(ordinal)),
        st.integers(0, 5).map(lambda index: lambda world: delete_child(world, index)),
        st.integers(0, 5).map(lambda index: lambda world: edit_child(world, index)),
        specs.map(lambda spec: lambda world: world.change(**spec)),
    )


@settings(max_examples=20)  # each is a scenario of some hundred passes
@given(
    st.sampled_from([1, 3]),
    st.sampled_from([0, 9, 40]),
    st.lists(events_of(), max_size=60),
    st.integers(1, 6),
)
def test_it_arrives_at_what_the_spec_says(
    first_count: int,
    quiet_rounds: int,
    events: list[Event],
    broker_count: int,
) -> None:
    """`World` asserts with each action that it harms nothing.

    It begins with a resource alone, with objects whose pods are not made yet, or with a ring.
    """
    world = World({"brokers": first_count})
    for _ in range(quiet_rounds):
        world.work()
        if quiet_rounds > 9:
            world.step()
    for event in events:
        event(world)
    world.change(image="tailrace/broker:0.2.0", storage={"size": "30Gi"}, brokers=broker_count)

    world.settle()

    cluster = world.observed()
    wanted = children(cluster)
    live_revision = world.children[STATEFUL_SET]["status"]["updateRevision"]
    assert set(world.children) == set(wanted)
    assert [drift(manifest, world.children[child]) for child, manifest in wanted.items()] == [
        None
    ] * len(wanted)
    assert sorted(world.pods) == list(range(broker_count))
    assert {pod.revision for pod in world.pods.values()} == {live_revision}
    used = [claim for ordinal, claim in world.claims.items() if ordinal < broker_count]
    assert {claim.requested_bytes for claim in used} == {30 * 2**30}
    is_owned = world.spec.get("deletionPolicy") == "Delete"
    assert {bool(claim.owners) for claim in used} == {is_owned}
    assert world.size == broker_count
    assert world.registered == set(range(broker_count))
    assert world.bootstrap_count == 1
    assert world.status["phase"] == "Ready"
    assert world.status["founded"] == {"brokers": broker_count, "clusterId": "ring-1"}


@settings(max_examples=15)
@given(st.lists(events_of(), max_size=40))
def test_at_rest_it_does_nothing_and_reports_nothing_new(events: list[Event]) -> None:
    world = World()
    for event in events:
        event(world)
    world.change(image=IMAGE)
    world.settle()
    before = world.status

    assert world.work() is None
    assert world.status == before


@given(st.lists(events_of(), max_size=30))
def test_the_same_observation_gives_the_same_action(events: list[Event]) -> None:
    world = World()
    for event in events:
        event(world)
    cluster = world.observed()

    assert next_action(cluster) == next_action(cluster)


@settings(max_examples=15)
@given(st.lists(events_of(), max_size=40), st.booleans())
def test_a_ring_is_never_founded_over_another(events: list[Event], is_retained: bool) -> None:
    """Nor when the resource is made again, with or without the volumes of before."""
    world = World()
    world.settle()
    again = World(disks=world.disks if is_retained else {}, claims=world.claims)
    again.bootstrap_count = 1
    for event in events:
        event(again)
    again.change(image=IMAGE)

    actions = again.settle()

    assert not is_retained or not any(isinstance(action, Found) for action in actions)
    assert again.bootstrap_count == (1 if is_retained else 2)
    assert again.observed().founded is not None


@given(st.lists(events_of(), max_size=40))
def test_a_pause_and_a_deletion_stop_everything(events: list[Event]) -> None:
    world = World()
    for event in events:
        event(world)

    for world.is_paused, world.is_deleting in [(True, False), (False, True), (True, True)]:
        assert world.work() is None


def test_restarts_go_through_the_ring_and_end_with_the_leader() -> None:
    world = World()
    world.settle()
    world.change(settings={"ioThreads": 4})

    actions = world.settle()

    assert [action.ordinal for action in actions if isinstance(action, RestartBroker)] == [1, 2, 0]
    assert ChildName("ConfigMap", "events-settings") in world.children
