"""Which Lease is free; how it is kept is in tests/integration/test_operator*."""

import asyncio
from typing import Any, cast

import pytest

from tailrace_operator.kube.client import Kube, UnavailableError
from tailrace_operator.kube.lease import Lease, LeaseLostError, LeaseWatch


def lease(holder: str, renewed: str = "t0", **spec: Any) -> dict[str, Any]:
    return {"holderIdentity": holder, "renewTime": renewed, **spec}


def test_a_lease_of_nobody_or_of_oneself_is_free() -> None:
    watch = LeaseWatch("me", 15_000)
    assert watch.is_free({}, 0)
    assert watch.is_free(lease(""), 0)
    assert watch.is_free(lease("me"), 0)


def test_a_lease_is_free_when_it_has_not_been_renewed_for_its_duration() -> None:
    watch = LeaseWatch("me", 15_000)
    assert not watch.is_free(lease("other"), 0)
    assert not watch.is_free(lease("other"), 14_999)
    assert not watch.is_free(lease("other", "t1"), 15_000), "it was renewed meanwhile"
    assert watch.is_free(lease("other", "t1"), 30_000)


def test_the_duration_is_the_holders() -> None:
    watch = LeaseWatch("me", 1)
    of_other = lease("other", leaseDurationSeconds=60)
    assert not watch.is_free(of_other, 0)
    assert not watch.is_free(of_other, 59_999)
    assert watch.is_free(of_other, 60_000)


class Away:
    """An API that gives the Lease once, and is away then."""

    def __init__(self) -> None:
        self.renewals = 0

    async def find(self, *_: Any, **__: Any) -> None:
        return None

    async def create(self, _: Any) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}}

    async def patch(self, *_: Any, **__: Any) -> None:
        self.renewals += 1
        if self.renewals == LAST_ANSWERED:
            await asyncio.Event().wait()
        raise UnavailableError("the Kubernetes API does not answer")


LAST_ANSWERED = 3


def test_a_renewal_that_fails_is_tried_again_until_the_lease_is_given_up() -> None:
    async def scenario() -> int:
        kube = Away()
        lease = Lease(
            cast("Kube", kube), namespace="ns", name="lease", identity="me", duration_s=1.2
        )
        await lease.acquire()
        with pytest.raises(LeaseLostError, match="could not be renewed"):
            await lease.keep()
        assert not lease.is_held
        return kube.renewals

    assert asyncio.run(scenario()) == LAST_ANSWERED, "the one that is not answered is cut short"
