"""A Kubernetes API for tests: a real HTTP server that keeps objects, and notifies watchers.

As the real one it has namespaces, labels, versions of objects, a generation of each spec, statuses
of their own, finalizers, server-side apply (fields that are not applied any more go; lists are
replaced), merge patches, preconditions, and deletes what belongs to a deleted object. It checks no
schemas, has no defaults and nobody's rights. What makes pods run is in `fake_nodes.py`.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import yaml
from aiohttp import web

from tailrace_operator.plan.names import FIELD_MANAGER, RESOURCES, Resource

HOST = "127.0.0.1"
CREATED = "2026-01-01T00:00:{:02d}Z"
# Kinds with a status subresource.
_WITH_STATUS = {"StreamCluster", "Topic"}
ObjectKey = tuple[str, str, str]  # kind, namespace, name


class Call(NamedTuple):
    """What the operator asked for; `resource` as in a role: `pods`, `topics/status`."""

    verb: str
    group: str
    resource: str
    name: str | None

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", "watch")


class RefusedError(Exception):
    """What the API answers instead."""

    def __init__(self, status: int, reason: str, message: str, *, cause: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.causes = [{"reason": cause}] if cause else []


@dataclass
class FakeKubernetes:
    """The API's objects and who watches them; `served` gives it a port."""

    calls: list[Call] = field(default_factory=list)
    objects: dict[ObjectKey, dict[str, Any]] = field(default_factory=dict)
    on_change: list[Callable[[], None]] = field(default_factory=list)
    groups: set[str] = field(
        default_factory=lambda: (
            {resource.group_version for resource in RESOURCES.values()}
            - {"monitoring.coreos.com/v1"}
            | {"apiextensions.k8s.io/v1"}
        )
    )
    forbidden: set[str] = field(default_factory=set)  # namespaces, to everyone
    ending: set[str] = field(default_factory=set)  # namespaces: nothing new is made there
    refused: dict[str, str] = field(default_factory=dict)  # writes, by kind, and what is reported
    writes_left: int | None = None  # the operator is cut off after so many writes
    port: int = 0

    def __post_init__(self) -> None:
        self.is_cut_off = asyncio.Event()
        self._versions = count(1)
        self._log: list[tuple[int, str, dict[str, Any]]] = []  # of changes, for watchers
        self._changed = asyncio.Event()
        self._applied: dict[ObjectKey, Any] = {}

    # --- for tests --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def find(self, kind: str, name: str, namespace: str = "ns") -> dict[str, Any] | None:
        """The object as it is."""
        return self.objects.get((kind, namespace, name))

    def get(self, kind: str, name: str, namespace: str = "ns") -> dict[str, Any]:
        """One that is there."""
        return self.objects[kind, namespace, name]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """In the order in which they were made."""
        return [each for key, each in list(self.objects.items()) if key[0] == kind]

    def put(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """As a person's `kubectl apply`, or a controller's change of a status."""
        new = copy.deepcopy(dict(manifest))
        new.setdefault("apiVersion", RESOURCES[new["kind"]].group_version)
        new["metadata"].setdefault("namespace", "ns")
        key = _key(new)
        old = self.objects.get(key)
        if old is None:
            return self._added(key, new)
        return self._changed_to(key, old, {**old, **new, "metadata": {**old["metadata"]}})

    def edit(self, kind: str, name: str, change: Mapping[str, Any], namespace: str = "ns") -> None:
        """A merge patch of all of it, the status too."""
        key = (kind, namespace, name)
        old = self.objects[key]
        self._changed_to(key, old, _merged(old, change))

    def remove(self, kind: str, name: str, namespace: str = "ns") -> None:
        """As `kubectl delete`."""
        self._deleted((kind, namespace, name), has_orphans=False)

    async def until(self, is_so: Callable[[], Any], timeout_s: float = 30.0) -> None:
        """Until it is so after some change."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                await self._next_change()

    def kubeconfig(self) -> str:
        """The text of a file for KUBECONFIG."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                "users": [{"name": "fake", "user": {"token": "token-of-the-tests"}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "current-context": "fake",
            }
        )

    @asynccontextmanager
    async def served(self) -> AsyncIterator["FakeKubernetes"]:
        """On a free port, as long as the block lasts."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        try:
            yield self
        finally:
            await runner.cleanup()

    # --- requests ---------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        try:
            found = _discovery(parts, self.groups)
            if found is not None:
                return web.json_response(found)
            return await self._handle_resource(request, parts)
        except RefusedError as error:
            body = {
                "kind": "Status",
                "status": "Failure",
                "message": str(error),
                "reason": error.reason,
                "details": {"causes": error.causes},
                "code": error.status,
            }
            return web.json_response(body, status=error.status)

    async def _handle_resource(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        version_parts = 1 if parts[0] == "api" else 2
        group_version = "/".join(parts[1 : 1 + version_parts])
        rest = parts[1 + version_parts :]
        namespace = None
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        kind = _kind(group_version, rest[0])
        if kind is None or group_version not in self.groups:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        if namespace in self.forbidden:
            raise RefusedError(403, "Forbidden", f"cannot list {rest[0]} in {namespace}")
        if kind in self.refused and request.method in ("PATCH", "POST"):
            raise RefusedError(422, "Invalid", self.refused[kind])
        name = rest[1] if len(rest) > 1 else None
        subresource = rest[2] if len(rest) > 2 else None
        verb = _verb(request, name)
        reported = rest[0] + (f"/{subresource}" if subresource else "")
        call = Call(verb, _api_group(RESOURCES[kind]), reported, name)
        if verb == "watch":
            self.calls.append(call)
            return await self._watch(request, kind, namespace)
        is_operator = request.headers.get("User-Agent") == FIELD_MANAGER
        if is_operator and self.is_cut_off.is_set():
            assert request.transport is not None
            request.transport.abort()  # it is dead, and only does not know it
            return web.Response()
        self.calls.append(call)
        content = await request.text()
        body = json.loads(content) if content else {}
        answer = self._answer(call, kind, namespace, body, request, subresource)
        if is_operator and call.is_write and kind != "Lease":
            await self.count_write()
        return web.json_response(answer, status=201 if verb == "create" else 200)

    async def count_write(self) -> None:
        """Of the operator, here or at a broker; the one too many is never answered."""
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.is_cut_off.set()
                self._wake()
                await asyncio.Event().wait()

    def _answer(
        self,
        call: Call,
        kind: str,
        namespace: str | None,
        body: dict[str, Any],
        request: web.Request,
        subresource: str | None,
    ) -> Any:
        key = (kind, namespace or "", call.name or "")
        if call.verb == "create":
            return self._create(kind, namespace or "", body)
        if call.verb == "list":
            return {
                "kind": f"{kind}List",
                "apiVersion": RESOURCES[kind].group_version,
                "metadata": {"resourceVersion": str(self._version)},
                "items": self._listed(kind, namespace, request.query.get("labelSelector", "")),
            }
        is_apply = "apply-patch" in request.headers.get("Content-Type", "")
        if call.verb == "patch" and is_apply:
            return self._apply(key, body)
        old = self.objects.get(key)
        if old is None:
            raise RefusedError(404, "NotFound", f'{call.resource} "{call.name}" not found')
        if call.verb == "get":
            return old
        if call.verb == "delete":
            _check(old, body.get("preconditions", {}))
            self._deleted(key, has_orphans=body.get("propagationPolicy") == "Orphan")
            return {"kind": "Status", "status": "Success"}
        _check(old, body.get("metadata", {}))
        return self._patched(key, old, body, is_status=subresource == "status")

    def _create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        if "name" not in metadata:
            metadata["name"] = f"{metadata.pop('generateName')}{next(self._versions)}"
        key = (kind, namespace, metadata["name"])
        if key in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{kind} "{metadata["name"]}" already exists')
        return self._added(key, body)

    def _apply(self, key: ObjectKey, body: dict[str, Any]) -> dict[str, Any]:
        old = self.objects.get(key)
        before = self._applied.get(key)
        self._applied[key] = copy.deepcopy(body)
        if old is None:
            # The role of who applies what is not there has to allow both.
            resource = RESOURCES[key[0]]
            self.calls.append(Call("create", _api_group(resource), resource.plural, key[2]))
            return self._added(key, body)
        _check_ports(old, body)
        cleaned = _without(old, before, body) if before is not None else old
        return self._changed_to(key, old, _merged(cleaned, body))

    def _patched(
        self, key: ObjectKey, old: dict[str, Any], body: dict[str, Any], *, is_status: bool
    ) -> dict[str, Any]:
        if is_status:
            body = {"status": body.get("status", {})}
        elif key[0] in _WITH_STATUS:
            body = {name: each for name, each in body.items() if name != "status"}
        metadata = dict(body.get("metadata", {}))
        metadata.pop("resourceVersion", None)
        changed = self._changed_to(key, old, _merged(old, {**body, "metadata": metadata}))
        if "deletionTimestamp" in changed["metadata"] and not changed["metadata"].get("finalizers"):
            self._gone(key)
        return changed

    # --- objects ----------------------------------------------------------------------------------

    @property
    def _version(self) -> int:
        return self._log[-1][0] if self._log else 0

    def _added(self, key: ObjectKey, body: Mapping[str, Any]) -> dict[str, Any]:
        if key[1] in self.ending:
            raise RefusedError(
                403,
                "Forbidden",
                f'{key[0]} "{key[2]}" is forbidden: unable to create new content in namespace '
                f"{key[1]} because it is being terminated",
                cause="NamespaceTerminating",
            )
        number = next(self._versions)
        new = copy.deepcopy(dict(body))
        new["metadata"] |= {
            "namespace": key[1],
            "uid": f"uid-{number}",
            "generation": 1,
            "creationTimestamp": CREATED.format(min(number, 59)),
        }
        if key[0] in _WITH_STATUS:
            new.setdefault("spec", {})
        self.objects[key] = new
        self._notify("ADDED", new)
        return new

    def _changed_to(
        self, key: ObjectKey, old: dict[str, Any], new: dict[str, Any]
    ) -> dict[str, Any]:
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new["metadata"] = {**new["metadata"], "generation": old["metadata"]["generation"] + 1}
        self.objects[key] = new
        self._notify("MODIFIED", new)
        return new

    def _deleted(self, key: ObjectKey, *, has_orphans: bool) -> None:
        old = self.objects[key]
        if old["metadata"].get("finalizers"):
            metadata = {**old["metadata"], "deletionTimestamp": CREATED.format(59)}
            self._changed_to(key, old, {**old, "metadata": metadata})
            return
        self._gone(key)
        uid = old["metadata"]["uid"]
        for other, each in list(self.objects.items()):
            references = each["metadata"].get("ownerReferences", [])
            if not any(reference["uid"] == uid for reference in references):
                continue
            left = [reference for reference in references if reference["uid"] != uid]
            if has_orphans or left:
                metadata = {**each["metadata"], "ownerReferences": left}
                self._changed_to(other, each, {**each, "metadata": metadata})
            else:
                self._deleted(other, has_orphans=False)

    def _gone(self, key: ObjectKey) -> None:
        self._applied.pop(key, None)
        self._notify("DELETED", self.objects.pop(key))

    def _notify(self, kind_of_change: str, document: dict[str, Any]) -> None:
        version = next(self._versions)
        document["metadata"]["resourceVersion"] = str(version)
        self._log.append((version, kind_of_change, copy.deepcopy(document)))
        self._wake()
        for each in self.on_change:
            each()

    def _wake(self) -> None:
        """Who waits for something to happen."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _listed(self, kind: str, namespace: str | None, selector: str) -> list[dict[str, Any]]:
        return [
            resource
            for resource in self.of_kind(kind)
            if namespace in (None, resource["metadata"]["namespace"])
            and _selects(selector, resource)
        ]

    async def _next_change(self) -> None:
        await self._changed.wait()

    async def _watch(
        self, request: web.Request, kind: str, namespace: str | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with suppress(ConnectionResetError):
            await self._send_changes(request, response, kind, namespace)
        return response

    async def _send_changes(
        self,
        request: web.Request,
        response: web.StreamResponse,
        kind: str,
        namespace: str | None,
    ) -> None:
        reported = int(request.query.get("resourceVersion") or 0)
        selector = request.query.get("labelSelector", "")
        while True:
            changed = self._changed
            for version, kind_of_change, document in self._log:
                is_wanted = (
                    version > reported
                    and document["kind"] == kind
                    and namespace in (None, document["metadata"]["namespace"])
                    and _selects(selector, document)
                )
                if is_wanted:
                    line = json.dumps({"type": kind_of_change, "object": document})
                    await response.write(line.encode() + b"\n")
            reported = max(reported, self._version)
            await changed.wait()


# --- pure -----------------------------------------------------------------------------------------


def _api_group(resource: Resource) -> str:
    """As in a role's `apiGroups`."""
    return resource.group_version.rpartition("/")[0]


def _discovery(parts: list[str], groups: set[str]) -> dict[str, Any] | None:
    """What kinds there are; None: the path differs."""
    match parts:
        case ["version"]:
            return {"major": "1", "minor": "36"}
        case ["api"]:
            return {"versions": ["v1"]}
        case ["apis"]:
            named = sorted(group for group in groups if "/" in group)
            return {"groups": [_group(*each.split("/")) for each in named]}
        case ["api", version]:
            return _resources(version)
        case ["apis", group, version] if f"{group}/{version}" in groups:
            return _resources(f"{group}/{version}")
        case ["apis", _, _]:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        case _:
            return None


def _group(name: str, version: str) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [{"version": version}],
        "preferredVersion": {"version": version},
    }


def _resources(group_version: str) -> dict[str, Any]:
    known = {
        kind: resource
        for kind, resource in RESOURCES.items()
        if resource.group_version == group_version
    }
    if group_version == "v1":
        known["Namespace"] = Resource(group_version, "namespaces", is_namespaced=False)
    if group_version.startswith("apiextensions"):
        known["CustomResourceDefinition"] = Resource(group_version, "customresourcedefinitions")
    return {
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": [
            {
                "name": each.plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": each.is_namespaced,
                "verbs": ["get", "list", "watch", "create", "patch", "delete"],
            }
            for kind, each in known.items()
        ],
    }


def _kind(group_version: str, plural: str) -> str | None:
    found = (
        kind
        for kind, resource in RESOURCES.items()
        if (resource.group_version, resource.plural) == (group_version, plural)
    )
    return next(found, None)


def _verb(request: web.Request, name: str | None) -> str:
    if request.method == "GET":
        if request.query.get("watch"):
            return "watch"
        return "list" if name is None else "get"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _key(document: Mapping[str, Any]) -> ObjectKey:
    metadata = document["metadata"]
    return (document["kind"], metadata["namespace"], metadata["name"])


def _check(old: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in ("uid", "resourceVersion"):
        if name in wanted and wanted[name] != old["metadata"][name]:
            raise RefusedError(409, "Conflict", "the object has been modified")


def _check_ports(old: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """A Service's ports are merged by their numbers: one of another number stays, with its name."""
    if wanted["kind"] == "Service":
        numbers = {port["name"]: port["port"] for port in wanted["spec"]["ports"]}
        for port in old["spec"]["ports"]:
            if numbers.get(port["name"], port["port"]) != port["port"]:
                raise RefusedError(422, "Invalid", f"Duplicate value: {port['name']}")


def _selects(selector: str, document: Mapping[str, Any]) -> bool:
    has = document["metadata"].get("labels") or {}
    wanted = (each.split("=") for each in selector.split(",") if each)
    return all(has.get(name) == value for name, value in wanted)


def _merged(old: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, Mapping):
        return copy.deepcopy(change)
    new = dict(old) if isinstance(old, Mapping) else {}
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(new.get(name), value)
    return new


def _without(old: Any, before: Any, now: Any) -> Any:
    """Without the fields that were applied before, and are not now."""
    if not (isinstance(old, Mapping) and isinstance(before, Mapping)):
        return old
    wanted = now if isinstance(now, Mapping) else {}
    return {
        name: _without(value, before.get(name), wanted.get(name))
        for name, value in old.items()
        if name not in before or name in wanted
    }
