"""A Kubernetes API for tests: a real HTTP server that keeps objects, and notifies watchers.

As the real one it has namespaces, labels, versions of objects, a generation of each spec, statuses
of their own, finalizers, server-side apply (fields that are not applied any more go, those of
others stay, in lists whose items have names too), merge patches, dry runs of these, preconditions,
defaults of pod templates, and deletes what belongs to a deleted object. It checks no schemas and
nobody's rights. What makes pods run is in `fake_nodes.py`.
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
from tests.support.operator.served import served

HOST = "127.0.0.1"
CREATED = "2026-01-01T00:00:{:02d}Z"
# Kinds with a status subresource.
_WITH_STATUS = {"StreamCluster", "Topic"}
# Lists that server-side apply merges by a field of their items.
_ITEM_NAMES = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
Place = tuple[str, str, str]  # kind, namespace, name


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
    objects: dict[Place, dict[str, Any]] = field(default_factory=dict)
    on_change: list[Callable[[], None]] = field(default_factory=list)
    groups: set[str] = field(
        default_factory=lambda: (
            {each.group_version for each in RESOURCES.values()} | {"apiextensions.k8s.io/v1"}
        )
    )
    forbidden: set[str] = field(default_factory=set)  # namespaces, to everyone
    ending: set[str] = field(default_factory=set)  # namespaces: nothing new is made there
    refused: dict[str, str] = field(default_factory=dict)  # writes, by kind, and what is reported
    failing: set[tuple[str, str]] = field(default_factory=set)  # HTTP methods and kinds
    on_eviction: list[Callable[[], None]] = field(
        default_factory=list
    )  # each once, before the next
    writes_left: int | None = None  # the operator is cut off after so many writes
    port: int = 0

    def __post_init__(self) -> None:
        self.is_cut_off = asyncio.Event()
        self._versions = count(1)
        self._log: list[tuple[int, str, dict[str, Any]]] = []  # of changes, for watchers
        self._changed = asyncio.Event()
        self._called = asyncio.Event()
        self._applied: dict[Place, Any] = {}

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
        return [each for place, each in list(self.objects.items()) if place[0] == kind]

    def put(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """As a person's `kubectl apply`, or a controller's change of a status."""
        new = copy.deepcopy(dict(manifest))
        new.setdefault("apiVersion", RESOURCES[new["kind"]].group_version)
        new["metadata"].setdefault("namespace", "ns")
        place = _place(new)
        old = self.objects.get(place)
        if old is None:
            return self._added(place, new)
        return self._changed_to(place, old, {**old, **new, "metadata": {**old["metadata"]}})

    def edit(self, kind: str, name: str, change: Mapping[str, Any], namespace: str = "ns") -> None:
        """A merge patch of all of it, the status too."""
        place = (kind, namespace, name)
        old = self.objects[place]
        self._let_go(place, self._changed_to(place, old, _merged(old, change)))

    def remove(self, kind: str, name: str, namespace: str = "ns") -> None:
        """As `kubectl delete`."""
        self._deleted((kind, namespace, name), has_orphans=False)

    async def until(self, is_so: Callable[[], Any], timeout_s: float = 30.0) -> None:
        """Until it is so after some change."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                await self._next_change()

    async def until_called(self, is_so: Callable[[], Any], timeout_s: float = 30.0) -> None:
        """Until it is so after some call."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                await self._called.wait()

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
        async with served(HOST, self._handle) as self.port:
            yield self

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
        if (request.method, kind) in self.failing:
            raise RefusedError(500, "InternalError", "failed calling webhook: connection refused")
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
        self._called.set()
        self._called = asyncio.Event()
        content = await request.text()
        body = json.loads(content) if content else {}
        answer = self._answer(call, kind, namespace, body, request, subresource)
        is_dry_run = request.query.get("dryRun") == "All"
        if is_operator and call.is_write and kind != "Lease" and not is_dry_run:
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
        place = (kind, namespace or "", call.name or "")
        if subresource == "eviction":
            return self._evicted(place, body)
        if call.verb == "create":
            return self._create(kind, namespace or "", body)
        if call.verb == "list":
            return {
                "kind": f"{kind}List",
                "apiVersion": RESOURCES[kind].group_version,
                "metadata": {"resourceVersion": str(self._version)},
                "items": [
                    each
                    for each in self._listed(
                        kind, namespace, request.query.get("labelSelector", "")
                    )
                    if _has_fields(request.query.get("fieldSelector", ""), each)
                ],
            }
        is_apply = "apply-patch" in request.headers.get("Content-Type", "")
        if call.verb == "patch" and is_apply:
            return self._apply(place, body)
        old = self.objects.get(place)
        if old is None:
            raise RefusedError(404, "NotFound", f'{call.resource} "{call.name}" not found')
        if call.verb == "get":
            return old
        if call.verb == "delete":
            _check(old, body.get("preconditions", {}))
            self._deleted(place, has_orphans=body.get("propagationPolicy") == "Orphan")
            return {"kind": "Status", "status": "Success"}
        _check(old, body.get("metadata", {}))
        if request.query.get("dryRun") == "All":
            return _defaulted(kind, _merged(old, body))
        return self._patched(place, old, body, is_status=subresource == "status")

    def _create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        if "name" not in metadata:
            metadata["name"] = f"{metadata.pop('generateName')}{next(self._versions)}"
        place = (kind, namespace, metadata["name"])
        if place in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{kind} "{metadata["name"]}" already exists')
        return self._added(place, body)

    def _apply(self, place: Place, body: dict[str, Any]) -> dict[str, Any]:
        old = self.objects.get(place)
        if old is not None:
            _check(old, body["metadata"])
            body["metadata"].pop("resourceVersion", None)
        before = self._applied.get(place)
        self._applied[place] = copy.deepcopy(body)
        if old is None:
            # The role of who applies what is not there has to allow both.
            resource = RESOURCES[place[0]]
            self.calls.append(Call("create", _api_group(resource), resource.plural, place[2]))
            return self._added(place, body)
        _check_ports(old, body)
        cleaned = _without(old, before, body) if before is not None else old
        return self._changed_to(place, old, _applied(cleaned, body))

    def _evicted(self, place: Place, body: dict[str, Any]) -> dict[str, Any]:
        """As the PodDisruptionBudgets that select the pod allow it; 429 when none may go now."""
        pod = self.objects.get(place)
        if pod is None:
            raise RefusedError(404, "NotFound", f'pods "{place[2]}" not found')
        _check(pod, body.get("deleteOptions", {}).get("preconditions", {}))
        while self.on_eviction:
            self.on_eviction.pop()()
        for budget in self._listed("PodDisruptionBudget", place[1], ""):
            selector = budget["spec"]["selector"]["matchLabels"]
            pods = self._listed("Pod", place[1], ",".join(f"{k}={v}" for k, v in selector.items()))
            away = sum(not is_ready(each) for each in pods)
            if pod in pods and is_ready(pod) and away >= budget["spec"]["maxUnavailable"]:
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise RefusedError(429, "TooManyRequests", message)
        self._deleted(place, has_orphans=False)
        return {"kind": "Status", "status": "Success"}

    def _patched(
        self, place: Place, old: dict[str, Any], body: dict[str, Any], *, is_status: bool
    ) -> dict[str, Any]:
        if is_status:
            body = {"status": body.get("status", {})}
        elif place[0] in _WITH_STATUS:
            body = {name: each for name, each in body.items() if name != "status"}
        metadata = dict(body.get("metadata", {}))
        metadata.pop("resourceVersion", None)
        changed = self._changed_to(place, old, _merged(old, {**body, "metadata": metadata}))
        self._let_go(place, changed)
        return changed

    # --- objects ----------------------------------------------------------------------------------

    @property
    def _version(self) -> int:
        return self._log[-1][0] if self._log else 0

    def _added(self, place: Place, body: Mapping[str, Any]) -> dict[str, Any]:
        if place[1] in self.ending:
            raise RefusedError(
                403,
                "Forbidden",
                f'{place[0]} "{place[2]}" is forbidden: unable to create new content in namespace '
                f"{place[1]} because it is being terminated",
                cause="NamespaceTerminating",
            )
        number = next(self._versions)
        new = _defaulted(place[0], copy.deepcopy(dict(body)))
        new["metadata"] |= {
            "namespace": place[1],
            "uid": f"uid-{number}",
            "generation": 1,
            "creationTimestamp": CREATED.format(min(number, 59)),
        }
        if place[0] in _WITH_STATUS:
            new.setdefault("spec", {})
        self.objects[place] = new
        self._notify("ADDED", new)
        return new

    def _changed_to(self, place: Place, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        new = _defaulted(place[0], new)
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new["metadata"] = {**new["metadata"], "generation": old["metadata"]["generation"] + 1}
        self.objects[place] = new
        self._notify("MODIFIED", new)
        return new

    def _deleted(self, place: Place, *, has_orphans: bool) -> None:
        old = self.objects[place]
        if old["metadata"].get("finalizers"):
            metadata = {**old["metadata"], "deletionTimestamp": CREATED.format(59)}
            self._changed_to(place, old, {**old, "metadata": metadata})
            return
        self._gone(place)
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

    def _let_go(self, place: Place, document: dict[str, Any]) -> None:
        """One that is being deleted, when nothing holds it any more."""
        metadata = document["metadata"]
        is_free = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        now = self.objects.get(place)  # who was notified may have let it go, and made another
        if is_free and now is not None and now["metadata"]["uid"] == metadata["uid"]:
            self._gone(place)

    def _gone(self, place: Place) -> None:
        self._applied.pop(place, None)
        self._notify("DELETED", self.objects.pop(place))

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
            each
            for each in self.of_kind(kind)
            if namespace in (None, each["metadata"]["namespace"]) and _selects(selector, each)
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
            named = sorted(each for each in groups if "/" in each)
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
    known = {kind: each for kind, each in RESOURCES.items() if each.group_version == group_version}
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
        for kind, each in RESOURCES.items()
        if (each.group_version, each.plural) == (group_version, plural)
    )
    return next(found, None)


def _verb(request: web.Request, name: str | None) -> str:
    if request.method == "GET":
        if request.query.get("watch"):
            return "watch"
        return "list" if name is None else "get"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[request.method]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether it serves, and does not end."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _place(document: Mapping[str, Any]) -> Place:
    metadata = document["metadata"]
    return (document["kind"], metadata["namespace"], metadata["name"])


def _check(old: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in ("uid", "resourceVersion"):
        if name in wanted and wanted[name] != old["metadata"][name]:
            raise RefusedError(409, "Conflict", "the object has been modified")


def _check_ports(old: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """A Service's ports are merged by their numbers: one of another number stays, with its name."""
    if wanted["kind"] == "Service":
        numbers = {each["name"]: each["port"] for each in wanted["spec"]["ports"]}
        for each in old["spec"]["ports"]:
            if numbers.get(each["name"], each["port"]) != each["port"]:
                raise RefusedError(422, "Invalid", f"Duplicate value: {each['name']}")


def _selects(selector: str, document: Mapping[str, Any]) -> bool:
    has = document["metadata"].get("labels") or {}
    wanted = (each.split("=") for each in selector.split(",") if each)
    return all(has.get(name) == value for name, value in wanted)


def _has_fields(selector: str, document: Mapping[str, Any]) -> bool:
    for path, _, value in (each.partition("=") for each in selector.split(",") if each):
        part: Any = document
        for name in path.split("."):
            part = part.get(name) or {}
        if part != value:
            return False
    return True


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


def _applied(old: Any, change: Any, name: str = "") -> Any:
    """Server-side apply: what is in a list by name is merged, what others have there stays."""
    if isinstance(change, Mapping):
        new = dict(old) if isinstance(old, Mapping) else {}
        return new | {key: _applied(new.get(key), each, key) for key, each in change.items()}
    by = _ITEM_NAMES.get(name)
    if by is None or not isinstance(old, list):
        return copy.deepcopy(change)
    has = {each[by]: each for each in old}
    names = {each[by] for each in change}
    merged = [_applied(has.get(each[by]), each) for each in change]
    return [*merged, *(each for each in old if each[by] not in names)]


def _without(old: Any, before: Any, now: Any, name: str = "") -> Any:
    """Without the fields that were applied before, and are not now."""
    if isinstance(old, Mapping) and isinstance(before, Mapping):
        wanted = now if isinstance(now, Mapping) else {}
        return {
            key: _without(value, before.get(key), wanted.get(key), key)
            for key, value in old.items()
            if key not in before or key in wanted
        }
    by = _ITEM_NAMES.get(name)
    if by is None or not (isinstance(old, list) and isinstance(before, list)):
        return old
    had, has = ({each[by]: each for each in one} for one in (before, now or []))
    return [
        _without(each, had.get(each[by]), has.get(each[by]))
        for each in old
        if each[by] not in had or each[by] in has
    ]


def _defaulted(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """With some of what the API server fills in where a StatefulSet says nothing."""
    if kind != "StatefulSet":
        return document
    new = copy.deepcopy(document)
    new["spec"].setdefault("revisionHistoryLimit", 10)
    pod = new["spec"]["template"]["spec"]
    for name, value in {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}.items():
        pod.setdefault(name, value)
    for container in pod["containers"]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
    return new
