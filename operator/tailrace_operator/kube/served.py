"""Which of several releases serves a namespace that all of them watch: the holder of its Lease.

The holder is a release, and not a pod: who acts for it is said by the release's own Lease. Reads
resources renew it, so that a namespace without any is free after a while.
"""

import asyncio
import time
from dataclasses import dataclass, field

from tailrace_operator.kube.client import AlreadyExistsError, ConflictError, Kube
from tailrace_operator.kube.lease import Lease

LEASE_NAME = "tailrace-served"


@dataclass(slots=True)
class _Namespace:
    lease: Lease
    asked_s: float = 0.0  # when somebody asked last
    one_asks: asyncio.Lock = field(default_factory=asyncio.Lock)


class ServedNamespaces:
    """Of `release`, which is silent for less than `duration_s` where it has a resource."""

    def __init__(self, kube: Kube, *, release: str, duration_s: float) -> None:
        self._kube = kube
        self._release = release
        self._duration_s = duration_s
        self._namespaces: dict[str, _Namespace] = {}

    async def reason_to_wait(self, namespace: str) -> str | None:
        """None: it is this release's, for two thirds of the duration at least. KubeError."""
        now_s = time.monotonic()
        one = self._namespaces.get(namespace)
        if one is None:
            self._forget_silent(now_s)
            one = self._namespaces[namespace] = self._of(namespace)
        one.asked_s = now_s
        async with one.one_asks:
            if one.lease.is_fresh:
                return None
            try:
                return await one.lease.take()
            except AlreadyExistsError as error:
                raise ConflictError(str(error), status=error.status) from error

    async def release(self) -> None:
        """Let other releases have them at once; best effort."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._namespaces.values():
                tasks.create_task(one.lease.release())

    def _forget_silent(self, now_s: float) -> None:
        """Namespaces without a resource: their Leases are free by now, and they may be gone."""
        begin_s = now_s - self._duration_s
        kept = {
            name: namespace
            for name, namespace in self._namespaces.items()
            if namespace.asked_s >= begin_s
        }
        self._namespaces = kept

    def _of(self, namespace: str) -> _Namespace:
        lease = Lease(
            self._kube,
            namespace=namespace,
            name=LEASE_NAME,
            identity=self._release,
            duration_s=self._duration_s,
        )
        return _Namespace(lease)
