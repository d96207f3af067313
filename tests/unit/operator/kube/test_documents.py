"""What is read of objects; how all of it is put together is in tests/integration/test_operator*."""

import base64

import pytest

from tailrace_operator.kube.documents import is_own, secret_text
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
