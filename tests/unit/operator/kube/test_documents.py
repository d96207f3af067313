"""What is read of objects; how all of it is put together is in tests/integration/test_operator*."""

import base64
from typing import Any

import pytest

from tailrace_operator.kube.documents import (
    claim_of,
    is_own,
    pods_of,
    refusal_of,
    secret_text,
)
from tailrace_operator.plan.observed import Document, Owner

OWNER = Owner(namespace="ns", name="events", uid="me", generation=1)


def secret(text: str, *owners: str) -> Document:
    references = [{"kind": "StreamCluster", "uid": uid, "controller": True} for uid in owners]
    data = {"secret": base64.b64encode(text.encode()).decode()} if text else {}
    return {"metadata": {"name": "events-ring", "ownerReferences": references}, "data": data}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, None),
        (secret("", "me"), None),
        (secret("known", "me"), "known"),
        (secret("known", "before me"), None),  # it goes, and what is made of it would be alone
        (secret("restored-by-hand"), "restored-by-hand"),
        (secret("of a file\n"), None),
        (secret("schlüssel"), None),
    ],
)
def test_a_ring_secret_is_that_of_this_resource(found: Document | None, text: str | None) -> None:
    assert secret_text(found, "me") == text


def of(owner: str | None, uid: str = "pod") -> Document:
    """An object that this one controls."""
    references = [] if owner is None else [{"uid": owner, "controller": True}]
    return {"metadata": {"uid": uid, "ownerReferences": references}}


@pytest.mark.parametrize(
    ("pod", "stateful_set", "is_ours"),
    [
        (of("set"), of("me", "set"), True),
        (of("set"), of(None, "set"), True),  # it will be taken back
        (of(None), None, True),  # while a StatefulSet is replaced
        (of(None), of("me", "set"), True),
        (of("set before"), of("me", "set"), False),
        (of("set before"), None, False),
        (of("set before"), of("before me", "set before"), False),
    ],
)
def test_a_pod_of_the_cluster_that_had_the_name_before_is_not_this_ones(
    pod: Document, stateful_set: Document | None, *, is_ours: bool
) -> None:
    assert is_own(OWNER, stateful_set, pod) == is_ours


def event(reason: str, at: str, note: str = "", **fields: Any) -> Document:
    return {"reason": reason, "message": note, "metadata": {"creationTimestamp": at}, **fields}


QUOTA = (
    "create Pod events-1 in StatefulSet events failed error: "
    'pods "events-1" is forbidden: exceeded quota: small'
)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], None),
        ([event("FailedCreate", "2026-01-01T00:00:01Z", QUOTA)], "exceeded quota: small"),
        ([event("FailedCreate", "2026-01-01T00:00:01Z", "no")], "no"),
        ([event("RecreatingFailedPod", "2026-01-01T00:00:01Z", "no")], None),
        (
            [
                event("FailedCreate", "2026-01-01T00:00:01Z", QUOTA),
                event("SuccessfulCreate", "2026-01-01T00:00:02Z"),
            ],
            None,  # it was so before
        ),
        (
            [  # the first one came again
                event(
                    "FailedCreate",
                    "2026-01-01T00:00:01Z",
                    QUOTA,
                    lastTimestamp="2026-01-01T00:00:03Z",
                ),
                event("SuccessfulCreate", "2026-01-01T00:00:02Z"),
            ],
            "exceeded quota: small",
        ),
        (
            [
                event("SuccessfulCreate", "2026-01-01T00:00:02Z"),
                event(
                    "FailedCreate",
                    "2026-01-01T00:00:01Z",
                    QUOTA,
                    series={"lastObservedTime": "2026-01-01T00:00:02.500000Z"},
                    eventTime=None,
                ),
            ],
            None,  # within one second it is not known: a success is not forgotten
        ),
        (
            [
                event(
                    "FailedCreate",
                    "2026-01-01T00:00:01Z",
                    "create Pod events-1 in StatefulSet events failed error: pvc data-events-1 is "
                    "being deleted",
                )
            ],
            None,  # as when a volume is replaced: the claim ends a moment after its pod
        ),
    ],
)
def test_the_last_event_of_a_stateful_set_says_why_it_makes_no_pod(
    events: list[Document], said: str | None
) -> None:
    assert refusal_of(events) == said


@pytest.mark.parametrize(
    ("spec", "phase", "can_grow", "said"),
    [
        ({}, "Pending", False, "no StorageClass: the cluster has no default one"),
        ({"storageClassName": "fast"}, "Pending", None, 'none of the name "fast"'),
        ({"storageClassName": "fast"}, "Pending", True, None),  # it waits for its pod
        ({"storageClassName": ""}, "Pending", False, None),
        ({"storageClassName": "fast"}, "Bound", None, None),
        ({"volumeName": "pv-1"}, "Pending", True, None),
    ],
)
def test_a_claim_says_that_there_is_no_storage_class(
    spec: dict[str, Any], phase: str, said: str | None, *, can_grow: bool | None
) -> None:
    document = {
        "metadata": {"name": "data-events-1", "resourceVersion": "7", "uid": "c-1"},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, **spec},
        "status": {"phase": phase},
    }

    claim = claim_of(1, document, can_grow=can_grow)

    assert (claim.problem is None) == (said is None)
    assert said is None or said in str(claim.problem)
    assert (claim.volume, claim.is_deleting) == (spec.get("volumeName", ""), False)


@pytest.mark.parametrize(
    ("finalizers", "holder"),
    [
        ([], None),
        (["kubernetes.io/pvc-protection"], None),
        (["kubernetes.io/pvc-protection", "backup/wait"], "backup/wait"),
    ],
)
def test_a_claim_that_is_deleted_says_what_holds_it_beside_its_pod(
    finalizers: list[str], holder: str | None
) -> None:
    metadata = {"name": "data-events-1", "resourceVersion": "7", "uid": "c-1"}
    document = {
        "metadata": {**metadata, "deletionTimestamp": "now", "finalizers": finalizers},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }

    claim = claim_of(1, document, can_grow=False)

    assert (claim.is_deleting, claim.holder) == (True, holder)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"waiting": {"reason": "ErrImagePull", "message": "no"}}, "ImagePullBackOff: no"),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no"}}, "ImagePullBackOff: no"),
        ({"waiting": {"reason": "InvalidImageName"}}, "InvalidImageName"),
        ({"waiting": {"reason": "ContainerCreating"}}, None),
        ({"running": {}}, None),
    ],
)
def test_a_pod_says_why_its_container_does_not_start(
    status: dict[str, Any], said: str | None
) -> None:
    document = {
        "metadata": {"name": "events-1", "uid": "u"},
        "spec": {},
        "status": {"containerStatuses": [{"name": "broker", "state": status}]},
    }

    (pod,) = pods_of("events", [document])

    assert pod.problem == said


@pytest.mark.parametrize(
    ("broker", "beside", "runs"),
    [
        ({"running": {}}, {"running": {}}, True),
        ({"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}, True),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}, False),
    ],
)
def test_a_broker_runs_whatever_a_webhook_has_put_beside_it(
    broker: dict[str, Any], beside: dict[str, Any], *, runs: bool
) -> None:
    """One that does not run is restarted although a range may need its copies."""
    containers = [{"name": "proxy", "state": beside}, {"name": "broker", "state": broker}]
    document = {
        "metadata": {"name": "events-1", "uid": "u"},
        "spec": {},
        "status": {"containerStatuses": containers},
    }

    (pod,) = pods_of("events", [document])

    assert pod.is_running is runs
