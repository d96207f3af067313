"""Applies one action of a plan: each is a call or two, and safe to repeat."""

import base64
import secrets
from collections.abc import Mapping
from typing import assert_never

from tailrace_operator.kube.client import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    Kube,
    NotFoundError,
)
from tailrace_operator.plan import actions
from tailrace_operator.plan.names import SECRET_KEY, TOPIC_FINALIZER, ZONE_LABEL
from tailrace_operator.plan.observed import Document
from tailrace_operator.ring.admin import RingAdmin

SECRET_BYTES = 32


async def apply(
    kube: Kube, admin: RingAdmin, document: Document, action: actions.Action
) -> str | None:
    """Apply an action for a resource, `document` being what it is now; return what came of it,
    where that is news. KubeError, RingError.
    """
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    match action:
        case actions.Apply():
            await _apply(kube, action)
        case actions.CreateSecret():
            await _create_secret(kube, action.manifest)
        case actions.Remove(child, uid):
            await kube.delete(child.kind, child.name, namespace=namespace, uid=uid)
        case actions.ReplaceStatefulSet():
            await kube.delete(
                "StatefulSet", action.name, namespace=namespace, uid=action.uid, has_orphans=True
            )
        case actions.PlacePod(ordinal, uid, zone):
            patch = _placement(uid, zone)
            await kube.patch("Pod", f"{name}-{ordinal}", patch, namespace=namespace)
        case actions.OwnClaim():
            patch = _owners(action)
            await kube.patch("PersistentVolumeClaim", action.name, patch, namespace=namespace)
        case actions.GrowClaim():
            patch = {"spec": {"resources": {"requests": {"storage": action.size}}}}
            await kube.patch("PersistentVolumeClaim", action.name, patch, namespace=namespace)
        case actions.RestartBroker(ordinal, uid) | actions.ReplaceVolume(ordinal, uid):
            await kube.evict(f"{name}-{ordinal}", namespace=namespace, uid=uid)
        case actions.Found(broker_count):
            return await admin.found(broker_count)
        case actions.StepRing(kind, broker_count):
            return await admin.step(kind, broker_count)
        case actions.RetireBroker(ordinal):
            await admin.retire(ordinal)
        case actions.DeleteClaim(claim, uid):
            await kube.delete("PersistentVolumeClaim", claim, namespace=namespace, uid=uid)
        case actions.CreateTopic(topic, settings):
            await admin.create_topic(topic, settings)
        case actions.AlterTopic(topic, settings):
            await admin.alter_topic(topic, settings)
        case actions.DeleteTopic(topic):
            await admin.delete_topic(topic)
        case actions.SetFinalizer(is_wanted):
            await set_finalizer(kube, document, is_wanted=is_wanted)
        case actions.RecordFounding() | actions.Blocked():
            pass  # said by the status
        case _:
            assert_never(action)
    return None


async def set_finalizer(kube: Kube, document: Document, *, is_wanted: bool) -> None:
    """Set the finalizer of a Topic, `document` being the resource as it was read. KubeError."""
    metadata = document["metadata"]
    finalizers = [
        finalizer for finalizer in metadata.get("finalizers") or () if finalizer != TOPIC_FINALIZER
    ]
    if is_wanted:
        finalizers.append(TOPIC_FINALIZER)
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
    try:
        await kube.patch("Topic", metadata["name"], patch, namespace=metadata["namespace"])
    except NotFoundError as error:  # it has gone since it was read
        raise ConflictError(str(error), status=error.status) from error


async def _apply(kube: Kube, action: actions.Apply) -> None:
    """What cannot be applied is merged, which replaces lists. ConflictError: it is not as it was
    seen any more, as after another operator, if this one stood still.

    A Service's ports are distinguished by their numbers. Beside one whose number somebody changed
    server-side apply puts its own, of the same name, and the API refuses the two.
    """
    kind, metadata = action.manifest["kind"], action.manifest["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    version = action.version
    if action.patch:
        patch = {**action.patch, "metadata": {"resourceVersion": version}}
        patched = await kube.patch(kind, name, patch, namespace=namespace)
        version = patched["metadata"]["resourceVersion"]
    known = {"resourceVersion": version} if version else {}
    manifest = {**action.manifest, "metadata": {**metadata, **known}}
    try:
        await kube.apply(manifest)
    except InvalidError as refused:
        try:
            await kube.patch(kind, name, manifest, namespace=namespace)
        except NotFoundError:
            raise refused from None
    except ConflictError:
        # Its controller has looked at what the patch changed; the next pass applies the rest.
        if not action.patch:
            raise


async def _create_secret(kube: Kube, manifest: Document) -> None:
    """Create it with a new text; an existing one stays, and is no ring Secret of this cluster."""
    text = base64.b64encode(secrets.token_urlsafe(SECRET_BYTES).encode()).decode()
    try:
        await kube.create({**manifest, "data": {SECRET_KEY: text}})
    except AlreadyExistsError as error:
        name = manifest["metadata"]["name"]
        raise AlreadyExistsError(
            f"Secret {name} is there already, and belongs to a different owner or has under "
            f"{SECRET_KEY} no visible ASCII without spaces; delete it, if it is not removed "
            "automatically",
            status=error.status,
        ) from error


def _owners(action: actions.OwnClaim) -> Mapping[str, object]:
    """All of them, since a merge replaces lists; refused when somebody else has changed any."""
    return {"metadata": {"resourceVersion": action.version, "ownerReferences": list(action.owners)}}


def _placement(uid: str, zone: str) -> Mapping[str, object]:
    """The pod goes where the zone is; refused when the pod has been replaced since."""
    expression = {"key": ZONE_LABEL, "operator": "In", "values": [zone]}
    terms = [{"matchExpressions": [expression]}]
    return {
        "metadata": {"uid": uid},
        "spec": {
            "schedulingGates": None,  # the pods are made with no other
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                }
            },
        },
    }
