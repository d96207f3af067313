"""Whether volumes of a StorageClass can grow: asked now and then, and kept."""

import time

from tailrace_operator.kube.client import ForbiddenError, Kube

_KEPT_S = 300.0  # classes change by hand, and seldom


class StorageClasses:
    """Asked of the API; see the module."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept: dict[str, tuple[float, bool | None]] = {}

    async def can_grow(self, name: str | None) -> bool | None:
        """Return whether volumes of this class can grow; None: there is no class of the name."""
        if not name:
            return False
        now_s = time.monotonic()
        kept = self._kept.get(name)
        if kept is None or now_s - kept[0] > _KEPT_S:
            kept = self._kept[name] = (now_s, await self._ask(name))
        return kept[1]

    async def _ask(self, name: str) -> bool | None:
        try:
            found = await self._kube.find("StorageClass", name)
        except ForbiddenError:  # a role for some namespaces only: the API says it when it is asked
            return True
        return None if found is None else found.get("allowVolumeExpansion") is True
