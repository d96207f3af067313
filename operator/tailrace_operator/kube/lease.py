"""One operator writes at a time: who holds a Lease (coordination.k8s.io/v1) of its name.

The decision is pure. As in Kubernetes' own controllers it trusts no other clock: a Lease is free
when it has not changed for its whole duration, by the clock of who watches it.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from tailrace_operator.kube.client import (
    AlreadyExistsError,
    ConflictError,
    Kube,
    KubeError,
    UnavailableError,
)
from tailrace_operator.plan.names import FIELD_MANAGER, MANAGED_BY_LABEL, RESOURCES
from tailrace_operator.plan.observed import Document

_RENEWALS = 3  # in one duration
_RETRIES = 15  # the same, of a renewal that failed
_LOST_AFTER = 2 / 3  # of the duration: before another can take it

log = structlog.get_logger()


class LeaseLostError(Exception):
    """Another operator may write now, so this one ends."""


@dataclass(slots=True)
class LeaseWatch:
    """What is known of a Lease that `identity` wants; `changed_ms`: when it was last another."""

    identity: str
    duration_ms: int
    seen: Document | None = None
    changed_ms: int = 0

    def is_free(self, spec: Document, now_ms: int) -> bool:
        """Return whether it can be taken, `spec` being what it says now."""
        if spec != self.seen:
            self.seen = dict(spec)
            self.changed_ms = now_ms
        if spec.get("holderIdentity") in (None, "", self.identity):
            return True
        lease_s = spec.get("leaseDurationSeconds")
        duration_ms = lease_s * 1000 if isinstance(lease_s, int) else self.duration_ms
        return now_ms - self.changed_ms >= duration_ms


class Lease:
    """The Lease `name`; `acquire` it, then `keep` it, and `release` it at the end."""

    def __init__(
        self, kube: Kube, *, namespace: str, name: str, identity: str, duration_s: float
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._watch = LeaseWatch(identity, int(duration_s * 1000))
        self._version: str | None = None  # of the Lease as this process wrote it
        self._renewed_s = 0.0  # when the last renewal was sent; the API may have it from then on
        self.is_held = False

    async def acquire(self) -> None:
        """Wait until it can be taken, and take it; KubeError when that can never be."""
        logged: str | None = None
        while (reason := await self._reason_to_wait()) is not None:
            if reason != logged:
                log.info("lease.awaited", lease=self._name, reason=reason)
                logged = reason
            await asyncio.sleep(self._duration_s / _RENEWALS)
        log.info("lease.taken", lease=self._name, identity=self._identity)

    @property
    def is_fresh(self) -> bool:
        """Return whether it is held, and need not be renewed yet."""
        return self.is_held and time.monotonic() < self._renewed_s + self._duration_s / _RENEWALS

    async def take(self) -> str | None:
        """Take it, or renew it; why not, if another has it. KubeError."""
        self.is_held = False
        lease = await self._kube.find("Lease", self._name, namespace=self._namespace)
        if lease is None:
            begun_s = time.monotonic()
            self._note(await self._kube.create(self._document(self._identity)))
            self._renewed_s = begun_s
        else:
            self._note(lease)
            if not self._watch.is_free(lease.get("spec") or {}, _now_ms()):
                return f"{lease['spec']['holderIdentity']} holds it"
            await self._write(self._identity)
        self.is_held = True
        return None

    async def keep(self) -> None:
        """Renew it for ever; LeaseLostError when another has it, or might soon have it."""
        wait_s = self._duration_s / _RENEWALS
        while True:
            await asyncio.sleep(wait_s)
            end_s = self._renewed_s + self._duration_s * _LOST_AFTER
            try:
                async with asyncio.timeout(end_s - time.monotonic()):
                    await self._renew()
                wait_s = self._duration_s / _RENEWALS
            except (KubeError, TimeoutError) as error:
                log.warning("lease.not_renewed", lease=self._name, error=str(error))
                wait_s = self._duration_s / _RETRIES
            if time.monotonic() >= self._renewed_s + self._duration_s * _LOST_AFTER:
                self.is_held = False
                raise LeaseLostError(f"the Lease {self._name} could not be renewed in time")

    async def release(self) -> None:
        """Let the next one have it at once; best effort."""
        if not self.is_held:
            return
        self.is_held = False
        try:
            await self._write("")
        except KubeError as error:
            log.warning("lease.not_released", lease=self._name, error=str(error))

    async def _reason_to_wait(self) -> str | None:
        """None: it is this one's now."""
        try:
            return await self.take()
        except (AlreadyExistsError, ConflictError):
            return "another was faster"
        except UnavailableError as error:
            return str(error)

    async def _renew(self) -> None:
        """LeaseLostError when another has it."""
        try:
            await self._write(self._identity)
        except ConflictError:
            lease = await self._kube.get("Lease", self._name, namespace=self._namespace)
            if lease["spec"].get("holderIdentity") != self._identity:
                self.is_held = False
                raise LeaseLostError(f"another operator holds the Lease {self._name}") from None
            self._note(lease)  # somebody touched it
            await self._write(self._identity)

    async def _write(self, holder: str) -> None:
        """ConflictError when it has changed since this process saw it."""
        patch = self._document(holder)
        patch["metadata"] = {"resourceVersion": self._version}
        begun_s = time.monotonic()
        self._note(await self._kube.patch("Lease", self._name, patch, namespace=self._namespace))
        self._renewed_s = begun_s

    def _note(self, document: Document) -> None:
        self._version = document["metadata"]["resourceVersion"]

    def _document(self, holder: str) -> dict[str, Document | str]:
        return {
            "apiVersion": RESOURCES["Lease"].group_version,
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {MANAGED_BY_LABEL: FIELD_MANAGER},
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": round(self._duration_s),
                "renewTime": micro_time(),
            },
        }


def micro_time() -> str:
    """Now, as the API writes it with microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
