"""One reconcile pass of a resource: observe, plan, report, apply one action, announce it.

Nothing is kept between two passes but what saves calls; the process may end between any two
calls, and the next one goes on. The status is written before the action, so that it says what is
being done; it is written only when it differs, and only over the version that was read: what else
has changed it since is read first.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import structlog

from tailrace_operator.api.spec import InvalidSpecError
from tailrace_operator.app.announce import (
    Announcement,
    announcement,
    event_manifest,
    is_news,
    warning,
)
from tailrace_operator.app.apply import apply, set_finalizer
from tailrace_operator.app.metrics import Metrics
from tailrace_operator.app.observe import observe_cluster, observe_topic
from tailrace_operator.app.pace import Outcome
from tailrace_operator.kube.client import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Kube,
    KubeError,
    NamespaceEndsError,
    NotFoundError,
)
from tailrace_operator.kube.lease import micro_time
from tailrace_operator.kube.served import ServedNamespaces
from tailrace_operator.kube.storage_classes import StorageClasses
from tailrace_operator.kube.stored import StoredSpecs
from tailrace_operator.plan.actions import (
    REPLACED,
    Action,
    AlterTopic,
    Blocked,
    CreateTopic,
    words_of,
)
from tailrace_operator.plan.conditions import by_type
from tailrace_operator.plan.drift import merge_patch
from tailrace_operator.plan.findings import INTERNAL_ERROR, RETRYING
from tailrace_operator.plan.names import TOPIC_FINALIZER
from tailrace_operator.plan.observed import Cluster, Document, Owner, Topic
from tailrace_operator.plan.plan import next_action
from tailrace_operator.plan.status import broken_status, cluster_status
from tailrace_operator.plan.topic_plan import next_topic_action
from tailrace_operator.plan.topic_status import topic_status
from tailrace_operator.ring.admin import RingError, Rings

# An error is reported in the status when it persists; the next try may succeed.
REPORTED_FAILURES_MIN = 3

# The reason of a cluster of which Kubernetes refuses an object.
_REFUSED = "Refused"

TakenBy = Callable[[list[Document] | None], str | None]

log = structlog.get_logger()


class Key(NamedTuple):
    """A resource."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PassResult:
    """What came of it; `state`: another one means that something has moved."""

    outcome: Outcome
    state: object = None


class Reconciler:
    """Runs passes; `identity`: the reporter of Events."""

    def __init__(
        self,
        kube: Kube,
        rings: Rings,
        served: ServedNamespaces,
        metrics: Metrics,
        *,
        default_image: str,
        identity: str,
    ) -> None:
        self._kube = kube
        self._rings = rings
        self._served = served
        self._reported: dict[Key, str] = {}  # resources that another release serves, and which
        self._metrics = metrics
        self._classes = StorageClasses(kube)
        self._stored = StoredSpecs(kube)
        self._default_image = default_image
        self._identity = identity

    async def reconcile(
        self,
        key: Key,
        *,
        failure_count: int,
        taken_by: TakenBy,
    ) -> PassResult:
        """Take one step. `failure_count`: of the passes before this one; `taken_by`: of a Topic,
        an older one of the same topic, by all Topics of the namespace or those that are known.
        """
        started_s = time.monotonic()
        try:
            result = await self._pass(key, failure_count, taken_by)
        except ConflictError as error:
            log.info("resource.changed_meanwhile", **key._asdict(), detail=str(error))
            result = PassResult(Outcome.CHANGED, "conflict")
        except (KubeError, RingError) as error:
            result = PassResult(Outcome.FAILED, str(error))
            self._log_failure(key, error, failure_count)
        except Exception as error:  # a bug that one resource meets holds up no other
            result = PassResult(Outcome.FAILED, repr(error))
            log.exception("resource.bug", **key._asdict())
            await self._report_bug(key, error)
        self._metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - started_s)
        outcomes = {Outcome.CHANGED: "changed", Outcome.FAILED: "failed"}
        self._metrics.reconciles.labels(key.kind, outcomes.get(result.outcome, "unchanged")).inc()
        return result

    async def has_ring_moved(self, key: Key) -> bool:
        """Return whether a ring says something else of its ranges than in the pass before."""
        return await self._rings.of(key.namespace, key.name).has_moved()

    async def _pass(self, key: Key, failure_count: int, taken_by: TakenBy) -> PassResult:
        document = await self._kube.find(key.kind, key.name, namespace=key.namespace)
        if document is None:
            await self._forget(key)
            return PassResult(Outcome.GONE)
        # What goes is let go by any release: its namespace may go too, and the Lease with it.
        if "deletionTimestamp" not in document["metadata"]:
            reason = await self._served.reason_to_wait(key.namespace)
            if reason is not None:
                await self._report_other_release(key, document, reason)
                return PassResult(Outcome.WAITING, reason)
            self._reported.pop(key, None)
        try:
            observed, action = await self._planned(key, document, taken_by)
        except InvalidSpecError as error:
            status = broken_status(document, "InvalidSpec", str(error), now=_now())
            document = await self._report(document, status)
            if _is_held(document):  # it goes, and its topic stays
                await set_finalizer(self._kube, document, is_wanted=False)
                return PassResult(Outcome.CHANGED, str(error))
            self._metrics.is_in_state(key, "blocked")
            return PassResult(Outcome.WELL, str(error))
        except KubeError as error:
            if self._fails_again(key, error, failure_count):
                status = broken_status(document, RETRYING, str(error), now=_now())
                with suppress(KubeError):  # it may be the API that is away
                    await self._report(document, status)
            raise
        return await self._take(key, document, observed, action, failure_count)

    async def _planned(
        self, key: Key, document: Document, taken_by: TakenBy
    ) -> tuple[Cluster | Topic, Action | None]:
        if key.kind == "StreamCluster":
            return await self._cluster(key, document)
        return await self._topic(key, document, taken_by)

    async def _take(
        self,
        key: Key,
        document: Document,
        observed: Cluster | Topic,
        action: Action | None,
        failure_count: int,
    ) -> PassResult:
        """Report, apply, and announce an action."""
        before, outcome, refused = observed.status, None, None
        is_reported_late = failure_count >= REPORTED_FAILURES_MIN or _is_refused(before)
        if not is_reported_late:
            document = await self._report(document, _status(observed, action))
        ring = key.name if isinstance(observed, Cluster) else observed.spec.cluster
        try:
            if action is not None:
                admin = self._rings.of(key.namespace, ring)
                outcome = await apply(self._kube, admin, document, action)
        except InvalidError as error:  # what the CRD lets pass, and other kinds do not
            action = refused = Blocked(_REFUSED, f"{error}; change the spec")
        except (KubeError, RingError) as error:
            if self._fails_again(key, error, failure_count):
                await self._report(document, _status(observed, action, str(error)))
            raise
        if is_reported_late or refused is not None:
            document = await self._report(document, _status(observed, action))
        return await self._report_outcome(key, observed, document, action, outcome)

    def _fails_again(self, key: Key, error: KubeError | RingError, failure_count: int) -> bool:
        """Whether a person should hear of it."""
        is_no_failure = isinstance(error, ConflictError | NamespaceEndsError)
        if is_no_failure or failure_count + 1 < REPORTED_FAILURES_MIN:
            return False
        self._metrics.is_in_state(key, "failing")
        return True

    async def _forget(self, key: Key) -> None:
        self._metrics.is_in_state(key, None)
        self._reported.pop(key, None)
        if key.kind == "StreamCluster":
            self._stored.forget(key.namespace, key.name)
            await self._rings.forget(key.namespace, key.name)

    # --- what differs between the kinds -----------------------------------------------------------

    async def _cluster(self, key: Key, document: Document) -> tuple[Cluster, Action | None]:
        cluster = await observe_cluster(
            self._kube,
            self._classes,
            self._stored,
            self._rings.of(key.namespace, key.name),
            document,
            default_image=self._default_image,
        )
        return cluster, next_action(cluster)

    async def _topic(
        self, key: Key, document: Document, taken_by: TakenBy
    ) -> tuple[Topic, Action | None]:
        ring_of = partial(self._rings.of, key.namespace)
        # A topic is changed only when it is sure that no older resource has it: by then all of
        # them may not have been informed.
        is_deleting = "deletionTimestamp" in document["metadata"]
        listed = await self._kube.list("Topic", namespace=key.namespace) if is_deleting else None
        topic = await observe_topic(self._kube, ring_of, document, taken_by=taken_by(listed))
        action = next_topic_action(topic)
        if listed is None and isinstance(action, CreateTopic | AlterTopic):
            listed = await self._kube.list("Topic", namespace=key.namespace)
            if (holder := taken_by(listed)) is not None:
                topic = await observe_topic(self._kube, ring_of, document, taken_by=holder)
                action = next_topic_action(topic)
        return topic, action

    # --- both -------------------------------------------------------------------------------------

    async def _report_outcome(
        self,
        key: Key,
        observed: Cluster | Topic,
        document: Document,
        action: Action | None,
        outcome: str | None,
    ) -> PassResult:
        """Return the result of a pass without an error."""
        status = document.get("status") or {}
        state = _state(observed.owner, action, status)
        self._metrics.is_in_state(key, state)
        moved = (action, _without_times(status))
        if action is None or isinstance(action, Blocked):
            if action and action.reason != REPLACED and is_news(action, observed.status):
                log.warning("resource.blocked", **key._asdict(), reason=action.reason)
                await self._announce(document, action, outcome)
            waits = state == "waiting" or _is_under_way(status)
            return PassResult(Outcome.WAITING if waits else Outcome.WELL, moved)
        name = type(action).__name__
        self._metrics.actions.labels(name).inc()
        log.info("action.done", **key._asdict(), action=name, detail=words_of(action).text)
        await self._announce(document, action, outcome)
        return PassResult(Outcome.CHANGED, moved)

    async def _announce(
        self, document: Document, action: Action, outcome: str | None = None
    ) -> None:
        """Announce it as an Event; one that is lost is no harm."""
        announced = announcement(action, outcome=outcome)
        if announced is not None:
            await self._write_event(announced, document)

    async def _warn(self, document: Document, status_before: Document) -> None:
        """Of what is wrong, once each time that it is."""
        found = warning(document, status_before)
        if found is not None:
            announced, name = found
            log.warning("resource.degraded", reason=announced.reason, message=announced.note)
            await self._write_event(announced, document, name=name)

    async def _write_event(
        self, announced: Announcement, document: Document, *, name: str | None = None
    ) -> None:
        manifest = event_manifest(
            announced, document, now=micro_time(), instance=self._identity, name=name
        )
        try:
            await self._kube.create(manifest)
        except AlreadyExistsError:
            pass  # it was written, and what came after it was not
        except NamespaceEndsError:
            pass  # who deletes it asks for no more Events
        except KubeError as error:
            log.warning("event.not_written", reason=announced.reason, error=str(error))

    async def _report_other_release(self, key: Key, document: Document, reason: str) -> None:
        """Once: its status is the other's."""
        self._metrics.is_in_state(key, "waiting")
        if self._reported.get(key) == reason:
            return
        self._reported[key] = reason
        log.warning("resource.served_by_another", **key._asdict(), reason=reason)
        blocked = Blocked(
            "ServedByAnother",
            f"another release of the operator serves this namespace: {reason}; confine one of them "
            "by watchNamespaces, or uninstall it",
        )
        await self._announce(document, blocked)

    async def _report(self, document: Document, status: Document) -> Document:
        """Write what differs in the status, and warn of what is wrong by it; return the resource
        after it. ConflictError.
        """
        before: Document = document.get("status") or {}
        patch = merge_patch(before, status)
        if not patch:
            return document
        metadata = document["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}
        try:
            reported = await self._kube.patch(
                document["kind"],
                metadata["name"],
                body,
                namespace=metadata["namespace"],
                is_status=True,
            )
        except NotFoundError as error:  # it is gone meanwhile; the next pass notices
            raise ConflictError(str(error), status=error.status) from error
        # Now: a pass may fail after this, and the next one finds nothing new in the status.
        await self._warn(reported, before)
        return reported

    async def _report_bug(self, key: Key, bug: Exception) -> None:
        """In a metric, and in the status of the resource that met it."""
        self._metrics.bugs.labels(key.kind).inc()
        self._metrics.is_in_state(key, "failing")
        what = f"{type(bug).__name__}: {str(bug).partition(chr(10))[0]}"
        message = f"the operator fails on this resource, please report it: {what}"
        try:
            document = await self._kube.find(key.kind, key.name, namespace=key.namespace)
            if document is not None:
                status = broken_status(document, INTERNAL_ERROR, message, now=_now())
                await self._report(document, status)
        except KubeError as error:
            log.warning("resource.bug_not_reported", **key._asdict(), error=str(error))

    def _log_failure(self, key: Key, error: KubeError | RingError, failure_count: int) -> None:
        """A person must act on what the role forbids; the rest heals itself."""
        if isinstance(error, NamespaceEndsError):
            if failure_count == 0:
                log.info("namespace.ends", **key._asdict(), reason=str(error))
        elif isinstance(error, ForbiddenError):
            log.error("resource.forbidden", **key._asdict(), error=str(error))
        elif isinstance(error, RingError) and error.retriable:
            log.info("ring.awaited", **key._asdict(), reason=str(error))
        else:
            log.warning("resource.failed", **key._asdict(), error=str(error))


def _status(observed: Cluster | Topic, action: Action | None, error: str | None = None) -> Document:
    if isinstance(observed, Cluster):
        return cluster_status(observed, action, now=_now(), error=error)
    return topic_status(observed, action, now=_now(), error=error)


def _is_held(document: Document) -> bool:
    """Return whether its deletion waits for the operator."""
    metadata = document["metadata"]
    is_deleting = "deletionTimestamp" in metadata
    return is_deleting and TOPIC_FINALIZER in (metadata.get("finalizers") or ())


def _state(owner: Owner, action: Action | None, status: Document) -> str:
    """Return one of `metrics.STATES`."""
    if owner.is_paused:
        return "paused"
    if isinstance(action, Blocked):
        return "blocked"
    is_ready = by_type(status).get("Ready", {}).get("status") == "True"
    return "ready" if is_ready and not _is_under_way(status) else "waiting"


def _is_under_way(status: Document) -> bool:
    return by_type(status).get("Progressing", {}).get("status") == "True"


def _is_refused(status: Document) -> bool:
    """So it was before: it is not said to be under way each time that it is tried."""
    return any(condition.get("reason") == _REFUSED for condition in status.get("conditions") or ())


def _without_times(status: Document) -> str:
    """Return the part that does not change by time alone."""
    conditions = [
        (condition["type"], condition["status"], condition.get("message"))
        for condition in status.get("conditions") or ()
    ]
    return repr((status.get("phase"), conditions))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
