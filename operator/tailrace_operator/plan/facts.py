"""What follows from an observation of a cluster: which brokers are there, which are outdated."""

from tailrace_operator.plan.observed import ChildName, Claim, Cluster, Document, Pod

# States of a broker.
MEMBER = "member"
EMPTY = "waiting to be founded"
OF_ANOTHER_RING = "of another ring"  # in which its volume is
# With so many replicas in sync a range takes events, where a topic asks for no more.
IN_SYNC_MIN = 2


def broker_count(cluster: Cluster) -> int:
    """Return how many brokers the ring has, or will be founded with."""
    founded, ring = cluster.founded, cluster.ring
    if founded is None:
        return cluster.spec.brokers
    if ring is not None and ring.broker_count is not None and is_founded(cluster):
        return ring.broker_count
    return founded.broker_count


def pod_count(cluster: Cluster) -> int:
    """Return how many brokers are to run: of the ring, the one that comes, and those that leave.

    While the ring does not say who they are, none is taken away.
    """
    count, ring = broker_count(cluster), cluster.ring
    if ring is None or not is_founded(cluster):
        return max(count, _kept_count(cluster))
    leaving = max(ring.registered, default=-1) + 1
    return max(count + (cluster.spec.brokers > count), leaving)


def _kept_count(cluster: Cluster) -> int:
    """Of a ring that does not answer: the pods that there are, also without their StatefulSet."""
    if not is_recorded(cluster):
        return 0
    live = cluster.children.get(ChildName("StatefulSet", cluster.owner.name))
    if live is None:
        return max((pod.ordinal + 1 for pod in cluster.pods), default=0)
    return int(live["spec"].get("replicas", 0))


def wanted_pods(cluster: Cluster) -> list[Pod]:
    """The pods of the brokers that are to run, by ordinal."""
    count = pod_count(cluster)
    pods = (pod for pod in cluster.pods if pod.ordinal < count)
    return sorted(pods, key=lambda pod: pod.ordinal)


def wanted_claims(cluster: Cluster) -> list[Claim]:
    """The claims of the brokers that are to run, by ordinal."""
    count = pod_count(cluster)
    claims = (claim for claim in cluster.claims if claim.ordinal < count)
    return sorted(claims, key=lambda claim: claim.ordinal)


def deleting_claims(cluster: Cluster) -> list[Claim]:
    """Those that are gone, with all data, as soon as their pods end."""
    return [claim for claim in wanted_claims(cluster) if claim.is_deleting]


def is_recorded(cluster: Cluster) -> bool:
    """Whether a ring is known to be founded."""
    return cluster.founded is not None and cluster.founded.cluster_id is not None


def running_ordinals(cluster: Cluster) -> set[int]:
    """Return the ordinals of brokers whose pods run, and are not about to end."""
    return {pod.ordinal for pod in wanted_pods(cluster) if pod.is_running and not pod.is_deleting}


def ready_ordinals(cluster: Cluster) -> set[int]:
    """Return the ordinals of brokers whose pods serve, and are not about to end."""
    return {pod.ordinal for pod in wanted_pods(cluster) if pod.is_ready and not pod.is_deleting}


def away_ordinals(cluster: Cluster) -> list[int]:
    """Return the ordinals of the ring's brokers that do not serve."""
    return sorted(set(range(broker_count(cluster))) - ready_ordinals(cluster))


def answered_ordinals(cluster: Cluster, *, state: str) -> set[int]:
    """Return the ordinals of brokers that answered, of those in this state."""
    brokers = () if cluster.ring is None else cluster.ring.brokers
    return {broker.ordinal for broker in brokers if broker.state == state}


def is_founded(cluster: Cluster) -> bool:
    """Return whether the ring that answers is the one that was founded."""
    founded, ring = cluster.founded, cluster.ring
    return (
        founded is not None
        and ring is not None
        and founded.cluster_id is not None
        and founded.cluster_id == ring.cluster_id
    )


def behind_ordinals(cluster: Cluster) -> list[int]:
    """Return the ordinals of brokers that lack events of a range, or are away from it."""
    ranges = () if cluster.ring is None else cluster.ring.ranges
    return sorted({ordinal for each in ranges for ordinal in {*each.replicas} - {*each.in_sync}})


def is_needed(cluster: Cluster, ordinal: int) -> bool:
    """Return whether a range waits for other replicas, and takes no events without this one."""
    ranges = () if cluster.ring is None else cluster.ring.ranges
    return any(
        ordinal in each.in_sync and len(each.in_sync) <= min(IN_SYNC_MIN, len(each.replicas) - 1)
        for each in ranges
    )


def copies_elsewhere(cluster: Cluster, ordinal: int) -> int:
    """Return how many other copies there are of all that a broker has.

    Copies of sealed ranges that are missing are in `Ring.sealed_short`. One that is about to join
    has nothing.
    """
    ring = cluster.ring
    if ring is None or ordinal >= broker_count(cluster):
        return 0
    its = (each for each in ring.ranges if ordinal in each.replicas)
    return min([ring.copies - 1, *(len({*each.in_sync} - {ordinal}) for each in its)])


def obstacle(cluster: Cluster, claim: Claim) -> str | None:
    """Why a volume that is being deleted is not replaced; None: it is when all copies are there.

    A disk takes a vote on the metadata with it, which the other voters must be able to give again.
    """
    ring, ordinal = cluster.ring, claim.ordinal
    if ring is None:
        return "no other broker is known to have all of its data"
    if claim.holder is not None:
        return f"finalizer {claim.holder} keeps the claim"
    if ring.has_step or ring.next_voters:
        return "the ring changes"
    if ordinal >= broker_count(cluster):
        if ring.sealed_held.get(ordinal):
            return f"others copy first what broker {ordinal} holds"
        return None if _has_nothing(cluster, ordinal) else f"broker {ordinal} leaves the ring"
    if copies_elsewhere(cluster, ordinal) < 1:
        return "no other broker is known to have all of its data"
    if 2 * len(ring.voters - {ordinal}) <= len(ring.voters):
        return "the metadata would have no majority of its voters"
    return None


def _has_nothing(cluster: Cluster, ordinal: int) -> bool:
    """Whether it is the broker that joins the ring next, and needs nothing of its volume."""
    ring, count = cluster.ring, broker_count(cluster)
    joins = cluster.spec.brokers > count == ordinal
    return joins and ring is not None and not ring.sealed_held.get(ordinal)


def is_whole(cluster: Cluster) -> bool:
    """Whether a broker can be taken away: all serve, and all ranges, sealed too, have their copies.

    The copies that a lost disk had of sealed ranges come back after those of open ranges. Of a
    volume that is being deleted nothing may be needed: it goes with its pod. While voters change,
    one whose disk is new may have no vote yet.
    """
    return (
        _all_serve(cluster)
        and cluster.ring is not None
        and not cluster.ring.next_voters
        and not cluster.ring.sealed_short
        and all(
            _has_nothing(cluster, claim.ordinal) or obstacle(cluster, claim) is None
            for claim in deleting_claims(cluster)
        )
    )


def can_step(cluster: Cluster) -> bool:
    """Whether the ring can take a step: all serve, and no volume is about to be replaced."""
    return _all_serve(cluster) and not deleting_claims(cluster)


def _all_serve(cluster: Cluster) -> bool:
    """Whether all brokers serve as members, and nothing waits for a replica."""
    ring = cluster.ring
    everyone = set(range(broker_count(cluster)))
    return (
        ring is not None
        and is_founded(cluster)
        and ring.metadata_leader is not None  # without it nobody can hand over or take over
        and ring.leaderless == 0
        and ring.under_replicated == 0
        and ready_ordinals(cluster) >= everyone
        and answered_ordinals(cluster, state=MEMBER) >= everyone
    )


def update_revision(cluster: Cluster) -> str | None:
    """The revision of the pods that are made from now on; None: not known at the moment."""
    live = cluster.children.get(ChildName("StatefulSet", cluster.owner.name))
    if live is None or is_going(live):
        return None
    status = live.get("status", {})
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return None
    revision: str | None = status.get("updateRevision")
    return revision or None


def outdated_pods(cluster: Cluster) -> list[Pod]:
    """Pods of another template than the present one, by ordinal."""
    revision = update_revision(cluster)
    if revision is None:
        return []
    return [pod for pod in wanted_pods(cluster) if pod.revision != revision and not pod.is_deleting]


def controller_of(live: Document) -> Document | None:
    """The reference to the object that an object was made for."""
    references = live["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def is_going(live: Document) -> bool:
    """Return whether an object is being deleted."""
    return "deletionTimestamp" in live["metadata"]
