"""What the Kubernetes API can answer, and what the operator makes of it; over real connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.app.apply import apply
from tailrace_operator.kube.client import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Kube,
    KubeError,
    NamespaceEndsError,
    NotFoundError,
    UnavailableError,
)
from tailrace_operator.plan.actions import Apply
from tailrace_operator.ring.admin import RingAdmin
from tests.support.operator.fake_kubernetes import FakeKubernetes

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POD: dict[str, Any] = {"spec": {"containers": []}}
ENDS = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}


def refusal(status: int, reason: str, **fields: Any) -> dict[str, Any]:
    """A `Status`, as the API server writes them."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"because of {reason}",
        "reason": reason,
        "code": status,
        **fields,
    }


@asynccontextmanager
async def answering(handle: Handler) -> AsyncIterator[str]:
    """The URL of a server whose every answer is that of `handle`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    assert site._server is not None
    try:
        yield f"http://{HOST}:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


async def failure_of(url: str, *, timeout_s: float = 10.0) -> KubeError:
    """Of one call: a change of the Topic `flights`."""
    kube = Kube(Configuration(host=url), timeout_s=timeout_s)
    try:
        await kube.patch("Topic", "flights", {"spec": {}}, namespace="ns")
    except KubeError as error:
        return error
    finally:
        await kube.close()
    raise AssertionError("it was taken")


def failure_when(
    status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[KubeError, int]:
    """What an answer becomes, and how often it was asked for."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        if isinstance(body, bytes):
            return web.Response(body=body, status=status, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    async def scenario() -> KubeError:
        async with answering(handle) as url:
            return await failure_of(url)

    return asyncio.run(scenario()), len(asked)


@pytest.mark.parametrize(
    ("status", "reason", "fields", "expected"),
    [
        (400, "BadRequest", {}, InvalidError),
        (401, "Unauthorized", {}, ForbiddenError),
        (403, "Forbidden", {}, ForbiddenError),
        (403, "Forbidden", {"details": {"causes": None}}, ForbiddenError),
        (403, "Forbidden", {"details": {"causes": [{"reason": "Other"}]}}, ForbiddenError),
        (403, "Forbidden", {"details": ENDS}, NamespaceEndsError),
        (404, "NotFound", {}, NotFoundError),
        (409, "AlreadyExists", {}, AlreadyExistsError),
        (409, "Conflict", {}, ConflictError),
        (410, "Expired", {}, KubeError),
        (422, "Invalid", {"details": {"causes": [{"field": "spec.x"}]}}, InvalidError),
        (429, "TooManyRequests", {}, UnavailableError),
        (500, "InternalError", {}, UnavailableError),
        (503, "ServiceUnavailable", {}, UnavailableError),
        (504, "Timeout", {}, UnavailableError),
    ],
)
def test_a_refusal_says_who_was_asked_for_what_and_why(
    status: int, reason: str, fields: dict[str, Any], expected: type[KubeError]
) -> None:
    error, asked_count = failure_when(status, refusal(status, reason, **fields))

    assert type(error) is expected
    assert str(error) == f"patch topics flights: because of {reason}"
    assert (error.status, asked_count) == (status, 1)


@pytest.mark.parametrize("status", [429, 503])
def test_who_is_asked_to_come_back_later_is_not_held_up_by_it(status: int) -> None:
    """The worker waits, and serves no other; a call that slept would keep what it has read."""
    error, asked_count = failure_when(
        status, refusal(status, "TooManyRequests"), headers={"Retry-After": "3600"}
    )

    assert type(error) is UnavailableError
    assert asked_count == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (201, None),
        (404, None),  # it is gone already
        (409, ConflictError),  # another pod of this name
        (429, ConflictError),  # its PodDisruptionBudget allows none to go now
        (500, UnavailableError),  # two budgets select it
    ],
)
def test_a_pod_is_evicted_if_it_is_the_one_that_is_meant(
    status: int, expected: type[KubeError] | None
) -> None:
    asked: list[tuple[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append((request.path, await request.json()))
        return web.json_response(refusal(status, ""), status=status)

    async def scenario() -> KubeError | None:
        async with answering(handle) as url:
            kube = Kube(Configuration(host=url), timeout_s=10.0)
            try:
                await kube.evict("events-1", namespace="ns", uid="pod-7")
            except KubeError as error:
                return error
            finally:
                await kube.close()
        return None

    error = asyncio.run(scenario())

    assert (None if error is None else type(error)) == expected
    ((path, body),) = asked
    assert path == "/api/v1/namespaces/ns/pods/events-1/eviction"
    assert body["deleteOptions"] == {"preconditions": {"uid": "pod-7"}}


@pytest.mark.parametrize(
    ("status", "body", "expected", "said"),
    [
        (502, b"<html>bad gateway</html>", UnavailableError, "<html>bad gateway</html>"),
        (500, b"", UnavailableError, "HTTP status 500"),
        (403, b"[]", ForbiddenError, "[]"),
        (418, b"\xff", KubeError, "\N{REPLACEMENT CHARACTER}"),
        (200, b"welcome", UnavailableError, "what answers is not a Kubernetes API"),
    ],
)
def test_a_proxy_before_the_api_may_answer_in_other_words(
    status: int, body: bytes, expected: type[KubeError], said: str
) -> None:
    error, _ = failure_when(status, body)

    assert type(error) is expected
    assert str(error) == f"patch topics flights: {said}"


def test_an_api_that_is_not_there_is_waited_for() -> None:
    async def scenario() -> KubeError:
        async with answering(nothing) as url:
            pass  # and it is closed again
        return await failure_of(url)

    error = asyncio.run(scenario())

    assert type(error) is UnavailableError
    assert error.status == 0
    assert "the Kubernetes API does not answer: " in str(error)


def test_an_api_that_ends_the_connection_is_waited_for() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def scenario() -> KubeError:
        async with answering(hang_up) as url:
            return await failure_of(url)

    assert type(asyncio.run(scenario())) is UnavailableError


def test_an_api_that_gives_no_answer_is_not_waited_for_any_longer() -> None:
    async def scenario() -> KubeError:
        async with answering(nothing) as url:
            return await failure_of(url, timeout_s=0.05)

    error = asyncio.run(scenario())

    assert type(error) is UnavailableError
    assert "the Kubernetes API does not answer: no answer in 0.05 s" in str(error)


async def nothing(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


def test_an_operator_that_stood_still_applies_nothing_over_what_came_after_it() -> None:
    """A pod that was frozen for longer than its Lease would take brokers away that have joined."""

    async def scenario() -> None:
        fake = FakeKubernetes()
        async with fake.served():
            kube = Kube(Configuration(host=fake.url), timeout_s=10.0)
            head = {"apiVersion": "apps/v1", "kind": "StatefulSet"}
            name = {"name": "events", "namespace": "ns"}
            seen = fake.put({**head, "metadata": name, "spec": {"replicas": 4, "template": POD}})
            version = seen["metadata"]["resourceVersion"]
            manifest = {**head, "metadata": name, "spec": {"replicas": 5, "template": POD}}
            late = Apply(manifest, "changed", version=version, patch={"spec": {"added": None}})
            fake.edit("StatefulSet", "events", {"spec": {"replicas": 6}})

            for action in (late, replace(late, patch={})):
                with pytest.raises(ConflictError):
                    await apply(kube, RingAdmin(str, timeout_s=1.0), seen, action)
            assert fake.get("StatefulSet", "events")["spec"]["replicas"] == 6

            version = fake.get("StatefulSet", "events")["metadata"]["resourceVersion"]
            await apply(kube, RingAdmin(str, timeout_s=1.0), seen, replace(late, version=version))
            assert fake.get("StatefulSet", "events")["spec"]["replicas"] == 5
            await kube.close()

    asyncio.run(scenario())
