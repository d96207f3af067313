"""How the API server writes the wanted spec of a StatefulSet: asked by a dry run.

What is known to be as wanted is not asked again, until either differs.
"""

from tailrace_operator.kube.client import (
    ForbiddenError,
    InvalidError,
    Kube,
    NotFoundError,
    UnavailableError,
)
from tailrace_operator.plan.facts import is_going
from tailrace_operator.plan.names import digest
from tailrace_operator.plan.observed import Document
from tailrace_operator.plan.whole import mutable_spec, spec_patch

_WEBHOOK_FAILS = 500  # of an API server that answers all else


class StoredSpecs:
    """Asked of the API; see the module."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._same: dict[tuple[str, str], str] = {}  # a digest of the wanted and the live one

    async def of(self, manifest: Document, live: Document | None) -> Document | None:
        """None: there is no StatefulSet, or the API server takes no such spec; also while a webhook
        that it asks does not answer. KubeError.
        """
        if live is None or is_going(live):
            return None
        metadata = manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        pair = digest([mutable_spec(manifest), mutable_spec(live)])
        if self._same.get(key) == pair:
            return mutable_spec(live)
        try:
            answer = await self._kube.patch(
                "StatefulSet",
                metadata["name"],
                spec_patch(manifest, live),
                namespace=metadata["namespace"],
                is_dry_run=True,
            )
        except (ForbiddenError, InvalidError, NotFoundError):
            return None  # an admission policy, for one; whoever applies it gets the reason
        except UnavailableError as error:
            if error.status != _WEBHOOK_FAILS:
                raise
            return None
        stored = mutable_spec(answer)
        if stored == mutable_spec(live):
            self._same[key] = pair
        return stored

    def forget(self, namespace: str, name: str) -> None:
        """The cluster is gone."""
        self._same.pop((namespace, name), None)
