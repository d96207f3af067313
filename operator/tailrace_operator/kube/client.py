"""The only calls of the Kubernetes API: raw JSON over `kubernetes.aio`'s client, each with a time
limit; what goes wrong is translated here.

    KubeError              the API refused, or did not answer
        NotFoundError      404: the object is not there
        AlreadyExistsError 409 at a create
        ConflictError      409 else: it has changed since it was read, so read it again; and 429
                           of an eviction: another pod is away
        InvalidError       400 and 422: what was sent can never be taken
        ForbiddenError     401 and 403: the operator's role does not allow it
        NamespaceEndsError 403 too: nothing new is made in a namespace that is being deleted
        UnavailableError   429, 5xx, or no answer: later
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.plan.names import FIELD_MANAGER, RESOURCES, Resource
from tailrace_operator.plan.observed import Document

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
_TOO_MANY = 429
_NAMESPACE_ENDS = "NamespaceTerminating"  # a cause in the details of a `Status`


class KubeError(Exception):
    """The API refused a call or did not answer; `status` 0: there was no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(KubeError):
    """The object is not there."""


class AlreadyExistsError(KubeError):
    """An object of this name is there already."""


class ConflictError(KubeError):
    """The object has changed since it was read, or was replaced by one of the same name."""


class InvalidError(KubeError):
    """What was sent can never be taken."""


class ForbiddenError(KubeError):
    """The operator's role does not allow it; the chart's does."""


class NamespaceEndsError(KubeError):
    """The namespace is being deleted, and all that is in it."""


class UnavailableError(KubeError):
    """The API is overloaded, away, or slower than the operator waits."""


class Kube:
    """Calls of one API server; `on_call(verb, resource)` hears of each, for metrics."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_s: float,
        on_call: Callable[[str, str], None] = lambda _verb, _resource: None,
    ) -> None:
        self._client = ApiClient(configuration)
        self._timeout_s = timeout_s
        self._on_call = on_call

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: str, name: str, *, namespace: str | None) -> Document:
        """Return one object; NotFoundError."""
        return await self._call("get", kind, namespace=namespace, name=name)

    async def find(self, kind: str, name: str, *, namespace: str | None = None) -> Document | None:
        """One object, None when it is not there."""
        try:
            return await self.get(kind, name, namespace=namespace)
        except NotFoundError:
            return None

    async def list(
        self,
        kind: str,
        *,
        namespace: str,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> "list[Document]":
        """The objects of a namespace that have these labels, and these fields."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query = {
            which: ",".join(f"{name}={value}" for name, value in selected.items())
            for which, selected in selectors.items()
            if selected
        }
        answer = await self._call("list", kind, namespace=namespace, query=query)
        return list(answer.get("items") or ())

    async def apply(self, manifest: Document) -> Document:
        """Make an object what `manifest` says, by server-side apply; its other fields stay."""
        return await self._call(
            "patch",
            manifest["kind"],
            namespace=manifest["metadata"].get("namespace"),
            name=manifest["metadata"]["name"],
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=manifest,
            content_type=_APPLY,
        )

    async def create(self, manifest: Document) -> Document:
        """Create an object. AlreadyExistsError."""
        metadata = manifest["metadata"]
        return await self._call(
            "create",
            manifest["kind"],
            namespace=metadata.get("namespace"),
            query={"fieldManager": FIELD_MANAGER},
            body=manifest,
        )

    async def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str,
        uid: str | None,
        has_orphans: bool = False,
    ) -> None:
        """Delete one; done when it is gone already. ConflictError: it is not the one of this `uid`.

        `has_orphans`: what it owns stays; else that goes in the background.
        """
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Orphan" if has_orphans else "Background",
        }
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("delete", kind, namespace=namespace, name=name, body=body)
        except NotFoundError:
            return

    async def evict(self, pod: str, *, namespace: str, uid: str) -> None:
        """Delete a pod, if it is of this `uid` and its PodDisruptionBudget allows it; done when it
        is gone already. ConflictError: it does not now, or the pod was replaced.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._call(
                "create",
                "Pod",
                namespace=namespace,
                name=pod,
                subresource="eviction",
                body=body,
            )
        except NotFoundError:
            return
        except UnavailableError as error:
            if error.status == _TOO_MANY:
                raise ConflictError(str(error), status=error.status) from error
            raise

    async def patch(
        self,
        kind: str,
        name: str,
        patch: Document,
        *,
        namespace: str,
        is_status: bool = False,
        is_dry_run: bool = False,
    ) -> Document:
        """Merge into an object, or into its status; ConflictError when `patch` names another
        `metadata.resourceVersion` than it has. A dry run only returns what it would be.
        """
        return await self._call(
            "patch",
            kind,
            namespace=namespace,
            name=name,
            query={"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if is_dry_run else {})},
            body=patch,
            content_type=_MERGE,
            subresource="status" if is_status else None,
        )

    async def has_kind(self, kind: str) -> bool:
        """Return whether the API knows it: of a group there may be some kinds only."""
        resource = RESOURCES[kind]
        try:
            known = await self._request("GET", f"/apis/{resource.group_version}")
        except NotFoundError:
            return False
        return any(each["name"] == resource.plural for each in known.get("resources") or ())

    async def _call(
        self,
        verb: str,
        kind: str,
        *,
        namespace: str | None,
        name: str | None = None,
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        content_type: str = _JSON,
    ) -> Document:
        resource = RESOURCES[kind]
        path = resource.plural + (f"/{subresource}" if subresource else "")
        self._on_call(verb, path)
        try:
            return await self._request(
                _METHODS[verb],
                _path(resource, namespace, name, subresource),
                query=query,
                body=body,
                content_type=content_type,
            )
        except KubeError as error:
            where = "" if name is None else f" {name}"
            raise type(error)(f"{verb} {path}{where}: {error}", status=error.status) from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        content_type: str = _JSON,
    ) -> Document:
        """Return the answer's JSON."""
        headers = {"Accept": _JSON, "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, (), ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path
        if query:
            url += f"?{urlencode(query)}"
        headers["User-Agent"] = FIELD_MANAGER
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
                    method, url, headers=headers, body=body, _request_timeout=self._timeout_s
                )
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            reason = str(error) or f"no answer in {self._timeout_s:g} s"
            raise UnavailableError(f"the Kubernetes API does not answer: {reason}") from error
        return _read(response.status, content)


def _path(
    resource: Resource, namespace: str | None, name: str | None, subresource: str | None
) -> str:
    assert resource.is_namespaced == (namespace is not None), resource.plural
    root = "/api" if "/" not in resource.group_version else "/apis"
    parts = [resource.group_version]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(resource.plural)
    parts += [quote(each, safe="") for each in (name, subresource) if each is not None]
    return "/".join([root, *parts])


def _read(status: int, content: bytes) -> Document:
    """Return the answer, or raise the error that it is."""
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {"message": content[:200].decode(errors="replace")}
        if 200 <= status < 300:
            raise UnavailableError("what answers is not a Kubernetes API", status=status)
    if 200 <= status < 300:
        return document
    message = str(document.get("message") or f"HTTP status {status}")
    raise _error_class(status, document)(message, status=status)


def _error_class(status: int, document: Document) -> type[KubeError]:
    """`document`: a `Status`, as far as it is one."""
    match status:
        case 404:
            return NotFoundError
        case 409:
            is_there = document.get("reason") == "AlreadyExists"
            return AlreadyExistsError if is_there else ConflictError
        case 400 | 422:
            return InvalidError
        case 403 if _NAMESPACE_ENDS in _causes(document):
            return NamespaceEndsError
        case 401 | 403:
            return ForbiddenError
        case _:
            return UnavailableError if status == _TOO_MANY or status >= 500 else KubeError


def _causes(document: Document) -> list[object]:
    details = document.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    listed = causes if isinstance(causes, list) else []
    return [each.get("reason") for each in listed if isinstance(each, Mapping)]
