"""What is read of objects; how all of it is put together is in tests/integration/test_operator*."""

import base64

import pytest

from tailrace_operator.observe import _secret_text
from tailrace_operator.observed import Document


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
        (secret("restored by hand"), "restored by hand"),
    ],
)
def test_a_ring_secret_is_that_of_this_resource(found: Document | None, text: str | None) -> None:
    assert _secret_text(found, "me") == text
