"""What is done next about the volumes of a StreamCluster: they grow, and stay or go with it."""

from dataclasses import replace

import pytest

from tailrace_operator.plan.actions import (
    ClusterAction,
    GrowClaim,
    OwnClaim,
    RecordFounding,
    RestartBroker,
)
from tailrace_operator.plan.manifests import owner_reference
from tailrace_operator.plan.observed import Claim
from tests.support.operator.kubernetes_world import (
    OWNER,
    STATEFUL_SET,
    World,
    action_of,
    blocked,
    settled,
)


def test_volumes_grow_one_by_one() -> None:
    world = settled()
    world.change(storage={"size": "20Gi"})

    actions = world.settle()

    assert [action for action in actions if isinstance(action, GrowClaim)] == [
        GrowClaim(f"data-events-{ordinal}", "20Gi") for ordinal in range(3)
    ]


def owned(actions: list[ClusterAction]) -> list[tuple[str, bool]]:
    return [(action.name, action.is_owned) for action in actions if isinstance(action, OwnClaim)]


def test_volumes_belong_to_the_cluster_while_they_are_to_go_with_it() -> None:
    world = settled(deletionPolicy="Delete")
    uids = [[owner["uid"] for owner in claim.owners] for claim in world.claims.values()]
    assert uids == [[OWNER.uid]] * 3

    world.change(deletionPolicy="Retain")

    assert owned(world.settle()) == [(f"data-events-{ordinal}", False) for ordinal in range(3)]
    assert [claim.owners for claim in world.claims.values()] == [()] * 3


def test_volumes_are_owned_before_there_is_anything_on_them() -> None:
    actions = World({"deletionPolicy": "Delete"}).settle()

    assert actions.index(RecordFounding(3, None)) > max(
        index for index, action in enumerate(actions) if isinstance(action, OwnClaim)
    )


def test_a_volume_that_stays_is_let_go_before_anything_else() -> None:
    world = settled(deletionPolicy="Delete")
    world.change(deletionPolicy="Retain")
    world.has_secret = False

    assert owned(world.settle()) == [(f"data-events-{ordinal}", False) for ordinal in range(3)]


def test_a_volume_that_is_let_go_may_be_of_a_broker_that_the_ring_has_not() -> None:
    """As when the volumes turned out to be those of a smaller ring."""
    world = settled(brokers=1)
    claim = Claim(1, "data-events-1", 2**30, 2**30, is_expandable=True)
    world.claims[1] = replace(claim, owners=(owner_reference(OWNER),))

    assert owned(world.settle()) == [("data-events-1", False)]


def test_who_undoes_an_owner_each_time_is_not_answered_as_fast_as_it_goes() -> None:
    """The operator slows down when it does the same again."""
    claims = [OwnClaim("data-events-0", version, (), is_owned=False) for version in ("1", "2")]

    assert claims[0] == claims[1]


def test_other_owners_of_a_volume_stay_its_owners() -> None:
    world = settled()
    stateful_set = {"kind": "StatefulSet", "name": "events", "uid": "set"}
    world.claims[1] = replace(world.claims[1], owners=(stateful_set,))
    world.change(deletionPolicy="Delete")

    world.settle()
    assert [owner["uid"] for owner in world.claims[1].owners] == ["set", OWNER.uid]
    world.change(deletionPolicy="Retain")
    world.settle()
    assert world.claims[1].owners == (stateful_set,)


def test_volumes_of_a_larger_ring_before_are_left_alone() -> None:
    world = settled(brokers=1, deletionPolicy="Delete")
    world.claims[1] = Claim(1, "data-events-1", 2**30, 2**30, is_expandable=True)

    assert world.settle() == []


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_volume_of_a_resource_that_had_the_name_before_is_waited_for(policy: str) -> None:
    world = settled()
    world.change(deletionPolicy=policy)
    world.settle()
    before = {"kind": "StreamCluster", "name": "events", "uid": "before"}
    world.claims[2] = replace(world.claims[2], owners=(before,))
    assert action_of(world.observed()) is None  # its pod runs: it is as it is
    del world.children[STATEFUL_SET]

    action = blocked(world.observed())

    assert action.reason == "Replaced"
    assert action.message.startswith("old volume data-events-2 is being deleted, with the")


@pytest.mark.parametrize(
    ("storage_class", "remedy"),
    [
        (None, "set allowVolumeExpansion: true in its StorageClass, if"),
        ("fast", "set allowVolumeExpansion: true in its StorageClass fast, if"),
        ("", "it has no StorageClass; move to another StreamCluster"),
    ],
)
def test_volumes_that_cannot_grow_block_with_the_remedy(
    storage_class: str | None, remedy: str
) -> None:
    storage = {"size": "10Gi", "storageClassName": storage_class}
    world = settled(storage=storage)
    world.claims[1] = replace(world.claims[1], requested_bytes=2**30, is_expandable=False)

    action = blocked(world.observed())

    assert action.reason == "VolumesCannotGrow"
    assert f"data-events-1 cannot grow to 10Gi; {remedy}" in action.message


def test_volumes_that_cannot_grow_keep_no_broker_from_its_new_template() -> None:
    world = settled()
    world.claims = {
        ordinal: replace(claim, is_expandable=False) for ordinal, claim in world.claims.items()
    }
    world.change(storage={"size": "20Gi"}, settings={"ioThreads": 4})

    restarts = [each for each in world.settle() if isinstance(each, RestartBroker)]

    assert [restart.ordinal for restart in restarts] == [1, 2, 0]
    assert blocked(world.observed()).reason == "VolumesCannotGrow"
