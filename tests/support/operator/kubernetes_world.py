"""A Kubernetes with one StreamCluster and its brokers, as values: what plans are tried on.

The controllers, the kubelet and the brokers do one step each when they are asked to; the operator's
actions are applied at once. What must never happen is asserted where it would.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace_operator.api.spec import parse_cluster_spec
from tailrace_operator.plan.actions import (
    Apply,
    Blocked,
    ClusterAction,
    CreateSecret,
    DeleteClaim,
    Found,
    GrowClaim,
    OwnClaim,
    PlacePod,
    RecordFounding,
    Remove,
    ReplaceStatefulSet,
    ReplaceVolume,
    RestartBroker,
    RetireBroker,
    StepRing,
)
from tailrace_operator.plan.drift import quantity
from tailrace_operator.plan.manifests import children
from tailrace_operator.plan.names import child_names, digest
from tailrace_operator.plan.observed import (
    Broker,
    ChildName,
    Claim,
    Cluster,
    Document,
    Founded,
    Owner,
    Pod,
    Range,
    Ring,
)
from tailrace_operator.plan.plan import next_action
from tailrace_operator.plan.status import cluster_status
from tailrace_operator.plan.whole import mutable_spec

IMAGE = "tailrace/broker:0.1.0"
BAD_IMAGE = "tailrace/broker:bad"  # with which no broker runs
NOW = "2026-11-21T10:00:00Z"
STATEFUL_SET = ChildName("StatefulSet", "events")
OWNER = Owner(namespace="shop", name="events", uid="owner-1", generation=1)
GIBIBYTE = 2**30
COPIES = 3
FLOOR = 2


def a_cluster(spec: dict[str, Any] | None = None, **changes: Any) -> Cluster:
    """Of which nothing is there but the resource, and its Secret."""
    cluster = Cluster(
        owner=OWNER,
        spec=parse_cluster_spec({"spec": spec or {}}),
        status={},
        founded=None,
        default_image=IMAGE,
        has_secret=True,
    )
    return replace(cluster, **changes)


@dataclass
class World:
    """`spec` as it was applied. `disks`: the ring that a broker's volume belongs to.

    `behind`: brokers that are in no ISR; each that ends is, as far as two others are in sync.
    `size`: how many brokers the ring has; `registered`: those that it knows; `held`: by broker that
    leaves, sealed ranges that others have not copied yet.
    """

    spec: dict[str, Any] = field(default_factory=dict)
    is_paused: bool = False
    is_deleting: bool = False
    has_secret: bool = False
    children: dict[ChildName, dict[str, Any]] = field(default_factory=dict)
    pods: dict[int, Pod] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    disks: dict[int, str | None] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    size: int = 0
    registered: set[int] = field(default_factory=set)
    held: dict[int, int] = field(default_factory=dict)
    retired: set[int] = field(default_factory=set)  # that run still
    founded: Founded | None = None
    generation: int = 1
    made_count: int = 0
    bootstrap_count: int = 0
    status: Document = field(default_factory=dict)
    stored_spec: Document | None = None  # what the API server makes of the StatefulSet's spec
    knows_stored_spec: bool = True

    def observed(self) -> Cluster:
        """As the operator sees it."""
        cluster = Cluster(
            owner=replace(
                OWNER,
                generation=self.generation,
                is_paused=self.is_paused,
                is_deleting=self.is_deleting,
            ),
            spec=parse_cluster_spec({"spec": self.spec}),
            status=self.status,
            founded=self.founded,
            default_image=IMAGE,
            has_secret=self.has_secret,
            children=dict(self.children),
            pods=tuple(self.pods.values()),
            claims=tuple(self.claims.values()),
            ring=self._ring(),
        )
        wanted = children(cluster)[STATEFUL_SET]
        is_known = STATEFUL_SET in self.children and self.knows_stored_spec
        stored_spec = self.stored_spec or mutable_spec(wanted)
        return replace(cluster, stored_spec=stored_spec if is_known else None)

    def work(self) -> ClusterAction | None:
        """One round of the operator: what it did."""
        cluster = self.observed()
        action = next_action(cluster)
        if action is not None:
            self._execute(action)
        self.status = cluster_status(cluster, action, now=NOW, error=None)
        return action

    def settle(self, *, rounds_max: int = 300) -> list[ClusterAction]:
        """Everyone works until nobody has anything to do; what the operator did."""
        done: list[ClusterAction] = []
        for _ in range(rounds_max):
            moved = self.step()
            action = self.work()
            if action is not None and not isinstance(action, Blocked):
                done.append(action)
            elif not moved:
                return done
        raise AssertionError(f"still at work after {rounds_max} rounds: {done[-4:]}")

    # --- everyone else ----------------------------------------------------------------------------

    def step(self) -> bool:
        """One step of the controllers and of every pod; whether anything moved."""
        moved = self.make_pods()
        for ordinal in list(self.pods):
            moved |= self.step_pod(ordinal)
        for ordinal, held in self.held.items():
            if held:
                self.held[ordinal] = held - 1
                moved = True
        for ordinal, claim in self.claims.items():
            if claim.capacity_bytes < claim.requested_bytes:
                self.claims[ordinal] = replace(claim, capacity_bytes=claim.requested_bytes)
                moved = True
        return moved

    def make_pods(self) -> bool:
        """The controller of StatefulSets; whether it did anything."""
        live = self.children.get(STATEFUL_SET)
        if live is None:
            return False
        revision = digest(live["spec"]["template"])
        before = live.get("status")
        live["status"] = {
            "observedGeneration": live["metadata"]["generation"],
            "updateRevision": revision,
        }
        going = {each.ordinal for each in self.claims.values() if each.is_deleting}
        there = {*self.pods, *going}
        missing = [each for each in range(live["spec"]["replicas"]) if each not in there]
        for ordinal in missing:
            self._make_pod(ordinal, live, revision)
        unwanted = [each for each in self.pods if each >= live["spec"]["replicas"]]
        for ordinal in unwanted:
            assert ordinal not in self.registered, "a broker is retired before its pod goes"
            self.end_pod(ordinal)
        return bool(missing or unwanted) or before != live["status"]

    def step_pod(self, ordinal: int) -> bool:
        """It starts, is admitted to the ring, serves, or ends; whether it did."""
        pod = self.pods.get(ordinal)
        if pod is None or (pod.is_gated and not pod.is_deleting):
            return False
        if pod.is_deleting:
            del self.pods[ordinal]
            self._leave(ordinal)
            claim = self.claims[ordinal]
            if claim.is_deleting and claim.holder is None:
                del self.claims[ordinal]
                self.disks[ordinal] = None
        elif not pod.is_running and pod.problem is None:
            self.pods[ordinal] = replace(pod, is_running=True)
        elif ordinal in self.retired:
            return False
        elif pod.is_running and self.disks[ordinal] is None and self._cluster_id() is not None:
            self.disks[ordinal] = self._cluster_id()
            self.registered.add(ordinal)
        elif pod.is_running and not pod.is_ready and self.disks[ordinal] is not None:
            self.pods[ordinal] = replace(pod, is_ready=True)
        elif pod.is_ready and ordinal in self.behind and self.in_sync():
            self.behind.remove(ordinal)
        else:
            return False
        return True

    def in_sync(self) -> set[int]:
        """Brokers that run and have all events of their ranges."""
        running = {each.ordinal for each in self.pods.values() if each.is_running}
        return {each for each in running if self.disks[each] is not None} - self.behind

    def lose_disk(self, ordinal: int) -> None:
        """Somebody deletes its claim and its pod, while others have all that it had."""
        if len(self.in_sync() - {ordinal}) >= FLOOR and ordinal in self.pods:
            self.behind.add(ordinal)
            self.disks[ordinal] = None
            self.end_pod(ordinal)

    def delete_claim(self, ordinal: int) -> None:
        """Somebody deletes it; of a ring that lives without it."""
        if self.size >= COPIES and ordinal in self.claims:
            self.claims[ordinal] = replace(self.claims[ordinal], is_deleting=True)

    def _leave(self, ordinal: int) -> None:
        everyone = set(range(self.size))  # before it is founded nobody has anything
        if ordinal in everyone and len(everyone - self.behind - {ordinal}) >= FLOOR:
            self.behind.add(ordinal)

    def end_pod(self, ordinal: int) -> None:
        """Somebody deletes it."""
        if ordinal in self.pods:
            pod = replace(self.pods[ordinal], is_deleting=True, is_ready=False, is_running=False)
            self.pods[ordinal] = pod

    def falter(self, ordinal: int) -> None:
        """It runs and does not serve for a while."""
        if ordinal in self.pods:
            self.pods[ordinal] = replace(self.pods[ordinal], is_ready=False)

    def change(self, **spec: Any) -> None:
        """Somebody applies the resource with these fields."""
        self.spec = {**self.spec, **spec}
        self.generation += 1

    # --- the operator's actions -------------------------------------------------------------------

    def _execute(self, action: ClusterAction) -> None:
        match action:
            case Apply(manifest):
                self._apply(manifest)
            case CreateSecret():
                assert not self.has_secret
                self.has_secret = True
            case Remove(child, _):
                assert child.kind in ("NetworkPolicy", "Service", "Ingress")
                assert child not in child_names(OWNER.name)[:3]
                del self.children[child]
            case ReplaceStatefulSet(_, uid):
                assert self.children[STATEFUL_SET]["metadata"]["uid"] == uid
                del self.children[STATEFUL_SET]
            case PlacePod(ordinal, uid, zone):
                pod = self.pods[ordinal]
                assert pod.is_gated
                assert pod.uid == uid
                self.pods[ordinal] = replace(pod, is_gated=False, zone=zone)
            case RecordFounding(count, cluster_id):
                founded = self.founded
                assert founded is None or founded.cluster_id in (None, cluster_id)
                assert count == (self.size or count)
                self.founded = Founded(count, cluster_id)
            case Found(count):
                self._found(count)
            case OwnClaim(name, version, owners, _):
                ordinal = int(name.rpartition("-")[2])
                claim = self.claims[ordinal]
                assert claim.version == version
                self.made_count += 1
                version = str(self.made_count)
                self.claims[ordinal] = replace(claim, owners=owners, version=version)
            case GrowClaim(name, size):
                self._grow(name, size)
            case RestartBroker(ordinal, uid):
                assert not self.claims[ordinal].is_deleting, "its volume goes with its pod"
                self._restart(ordinal, uid)
            case ReplaceVolume(ordinal, uid, claim_name, copies):
                assert self.claims[ordinal].is_deleting
                assert self.claims[ordinal].name == claim_name
                if ordinal < self.size:
                    assert self.in_sync() >= set(range(self.size)), "others have all that it has"
                    assert copies == min(COPIES, self.size) - 1 > 0
                    assert {ordinal} != self.voters(), "others vote"
                else:
                    assert not self.held.get(ordinal), "others have all that it holds"
                self._restart(ordinal, uid)
            case StepRing(kind, before):
                self._step_ring(before, 1 if kind == "grow" else -1)
            case RetireBroker(ordinal):
                assert ordinal >= self.size
                assert not self.held.get(ordinal), "others have all that it holds"
                self.registered.remove(ordinal)
                self.retired.add(ordinal)
                self.disks[ordinal] = None
            case DeleteClaim(name):
                ordinal = int(name.rpartition("-")[2])
                assert ordinal not in self.registered
                assert ordinal not in self.pods
                del self.claims[ordinal]
            case Blocked():
                pass

    def _apply(self, manifest: Document) -> None:
        """Server-side apply: what was applied before and is not now goes."""
        child = ChildName(manifest["kind"], manifest["metadata"]["name"])
        live = self.children.get(child)
        made = copy.deepcopy(dict(manifest))
        if live is None:
            self.made_count += 1
            uid, version = f"child-{self.made_count}", str(self.made_count)
            made["metadata"] |= {"uid": uid, "generation": 1, "resourceVersion": version}
        else:
            if child == STATEFUL_SET:
                assert made["spec"]["replicas"] > max(self.registered, default=-1)
                kept = ("volumeClaimTemplates", "selector", "serviceName", "podManagementPolicy")
                assert all(made["spec"][each] == live["spec"][each] for each in kept)
            is_same = made.get("spec") == live.get("spec")
            generation = live["metadata"]["generation"] + (0 if is_same else 1)
            kept_metadata = {name: live["metadata"][name] for name in ("uid", "resourceVersion")}
            made["metadata"] |= {**kept_metadata, "generation": generation}
            made |= {"status": live["status"]} if "status" in live else {}
        self.children[child] = made

    def _found(self, count: int) -> None:
        assert self.founded == Founded(count, None), "it is recorded first"
        rings = {self.disks[ordinal] for ordinal in range(count)}
        assert rings == {None}, "a ring is founded once, by empty brokers"
        assert all(self.pods[ordinal].is_running for ordinal in range(count))
        self.bootstrap_count += 1
        self.size, self.registered = count, set(range(count))
        self.disks |= dict.fromkeys(range(count), f"ring-{self.bootstrap_count}")

    def _step_ring(self, before: int, change: int) -> None:
        """The ring refuses what it is not ready for; the operator waits with it."""
        assert before == self.size
        assert not self.behind, "each range has all copies"
        assert self.in_sync() >= set(range(before))
        if change > 0:
            assert self.pods[before].is_ready
            assert before in self.registered
        else:
            self.held[before - 1] = 2
        self.size += change

    def _grow(self, name: str, size: str) -> None:
        ordinal = int(name.rpartition("-")[2])
        size_bytes = int(quantity(size) or 0)
        assert size_bytes > self.claims[ordinal].requested_bytes
        self.claims[ordinal] = replace(self.claims[ordinal], requested_bytes=size_bytes)

    def _restart(self, ordinal: int, uid: str) -> None:
        pod = self.pods[ordinal]
        assert pod.uid == uid
        if pod.is_ready:
            others = [self.pods.get(each) for each in range(self._count()) if each != ordinal]
            assert all(other is not None and other.is_ready for other in others), "one at a time"
            assert not self.behind, "each range has all copies before the next broker goes"
        in_sync = self.in_sync()
        if self._count() > FLOOR and ordinal in in_sync:
            assert len(in_sync - {ordinal}) >= FLOOR, "a range needs its copies"
        self.end_pod(ordinal)

    # --- the ring ---------------------------------------------------------------------------------

    def _make_pod(self, ordinal: int, live: Document, revision: str) -> None:
        self.made_count += 1
        self.retired.discard(ordinal)
        spec = live["spec"]["template"]["spec"]
        is_bad = spec["containers"][0]["image"] == BAD_IMAGE
        self.pods[ordinal] = Pod(
            ordinal=ordinal,
            uid=f"pod-{self.made_count}",
            revision=revision,
            is_running=False,
            is_ready=False,
            is_gated=bool(spec.get("schedulingGates")),
            problem="ImagePullBackOff: no such image" if is_bad else None,
            template=live["spec"]["template"],
        )
        if ordinal not in self.claims:
            template = live["spec"]["volumeClaimTemplates"][0]
            size = int(quantity(template["spec"]["resources"]["requests"]["storage"]) or 0)
            self.claims[ordinal] = Claim(ordinal, f"data-events-{ordinal}", size, size, True)
        self.disks.setdefault(ordinal, None)

    def _count(self) -> int:
        asked = int(self.spec.get("brokers", 3))
        founded = asked if self.founded is None else self.founded.broker_count
        return self.size or founded

    def voters(self) -> set[int]:
        """Those of lowest ordinal."""
        return set(range(3)) if self.size >= 3 else {0}

    def _cluster_id(self) -> str | None:
        return next(filter(None, self.disks.values()), None)

    def _ring(self) -> Ring | None:
        """The answers of the brokers that run."""
        running = [pod for pod in self.pods.values() if pod.is_running]
        if not running:
            return None
        rings = [self.disks[each.ordinal] for each in running]
        cluster_id = next(filter(None, rings), None)
        brokers = tuple(
            Broker(
                each.ordinal,
                "waiting to be founded" if self.disks[each.ordinal] is None else "member",
            )
            for each in running
        )
        serving = {each.ordinal for each in running if each.is_ready} & self.in_sync()
        return Ring(
            cluster_id=cluster_id,
            broker_count=None if cluster_id is None else self._count(),
            copies=min(COPIES, self._count()),
            version="0.1.0",
            metadata_leader=0,
            registered=frozenset(self.registered),
            sealed_held={each: count for each, count in self.held.items() if count},
            ranges=() if cluster_id is None else ranges_of(self._count(), self.in_sync(), serving),
            brokers=brokers,
            voters=frozenset(self.voters()),
        )


def ranges_of(
    broker_count: int, in_sync: Collection[int], serving: Collection[int]
) -> tuple[Range, ...]:
    """A range for each broker, with replicas on it and the next two, led by one that serves."""
    ranges = []
    for number in range(broker_count):
        replicas = tuple(
            (number + each) % broker_count for each in range(min(COPIES, broker_count))
        )
        whole = tuple(each for each in replicas if each in in_sync)
        ranges.append(Range(number, replicas, whole, is_led=any(r in serving for r in replicas)))
    return tuple(ranges)


def with_ranges(
    ring: Ring | None,
    *,
    behind: Collection[int] = (),
    leaderless: Collection[int] = (),
    losses: Mapping[int, str] | None = None,
) -> Ring:
    """The same with brokers in no ISR, ranges that nobody leads, and ranges that are lost."""
    assert ring is not None
    ranges = tuple(
        replace(
            each,
            in_sync=tuple(ordinal for ordinal in each.in_sync if ordinal not in behind),
            is_led=each.number not in leaderless,
            loss=(losses or {}).get(each.number),
        )
        for each in ring.ranges
    )
    return replace(ring, ranges=ranges)


def settled(**spec: Any) -> World:
    """A ring that is as its spec says."""
    world = World(spec)
    world.settle()
    return world


def action_of(cluster: Cluster) -> ClusterAction | None:
    """What is done next."""
    return next_action(cluster)


def blocked(cluster: Cluster) -> Blocked:
    """What a person has to do next."""
    action = action_of(cluster)
    assert isinstance(action, Blocked), action
    return action
