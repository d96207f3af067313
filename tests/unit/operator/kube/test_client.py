"""What is asked of the Kubernetes API; the calls themselves are in tests/integration."""

import asyncio
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.kube.client import Kube, NotFoundError


class Knows(Kube):
    """Of our group these plurals; None: nothing of it."""

    def __init__(self, plurals: tuple[str, ...] | None) -> None:
        super().__init__(Configuration(), timeout_s=1)
        self.plurals = plurals

    async def _request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        assert (method, path) == ("GET", "/apis/tailrace.dev/v1alpha1")
        if self.plurals is None:
            raise NotFoundError("the server could not find the requested resource", status=404)
        return {"resources": [{"name": plural} for plural in self.plurals]}


@pytest.mark.parametrize(
    ("plurals", "is_known"),
    [
        (None, False),
        ((), False),
        (("streamclusters",), False),  # CRDs come one after the other
        (("streamclusters", "topics"), True),
    ],
)
def test_a_kind_is_known_when_the_group_has_it(
    plurals: tuple[str, ...] | None, *, is_known: bool
) -> None:
    async def scenario() -> bool:
        kube = Knows(plurals)
        try:
            return await kube.has_kind("Topic")
        finally:
            await kube.close()

    assert asyncio.run(scenario()) is is_known
