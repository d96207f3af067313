"""What this Kubernetes can do: asked now and then, and kept."""

import time
from collections.abc import Awaitable, Callable

from tailrace_operator.kube.client import ForbiddenError, Kube

_KEPT_S = 300.0  # what the cluster can do changes by hand, and seldom


class Abilities:
    """Asked of the API; see the module."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept: dict[str, tuple[float, bool]] = {}
        self._classes: dict[str, bool] = {}  # those that were asked for, and whether they exist

    async def is_expandable(self, storage_class: str | None) -> bool:
        """Return whether volumes of this class can grow."""
        if not storage_class:
            return False
        return await self._ask(f"class/{storage_class}", lambda: self._expands(storage_class))

    def has_class(self, storage_class: str | None) -> bool:
        """Whether a StorageClass that was asked for existed then; one that was not does."""
        return self._classes.get(storage_class or "", True)

    async def _expands(self, storage_class: str) -> bool:
        try:
            resource = await self._kube.find("StorageClass", storage_class)
        except ForbiddenError:  # a role for some namespaces only: the API says it when it is asked
            return True
        self._classes[storage_class] = resource is not None
        return resource is not None and resource.get("allowVolumeExpansion") is True

    async def _ask(self, key: str, ask: Callable[[], Awaitable[bool]]) -> bool:
        now_s = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or now_s - kept[0] > _KEPT_S:
            kept = self._kept[key] = (now_s, await ask())
        return kept[1]
