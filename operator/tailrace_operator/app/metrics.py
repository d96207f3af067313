"""What the operator counts, and its small HTTP server: `/live`, `/ready`, `/metrics`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

KINDS = ("StreamCluster", "Topic")
STATES = ("ready", "waiting", "blocked", "paused", "failing")
# From a pass that changes nothing to one that waits for the ring's bootstrap.
_SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All counters, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "tailrace_operator_reconciles",
            "Reconcile passes, by outcome: changed, unchanged, failed.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "tailrace_operator_reconcile_seconds",
            "Time of one reconcile pass of a resource, with the change that it led to.",
            ("kind",),
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.bugs = Counter(
            "tailrace_operator_bugs",
            "Passes that ended in an error that the operator does not know: its own mistakes.",
            ("kind",),
            registry=self.registry,
        )
        for kind in KINDS:
            self.bugs.labels(kind)  # an alert on its growth needs the 0
        self.actions = Counter(
            "tailrace_operator_actions",
            "Changes made, by their kind, as in RestartBroker.",
            ("action",),
            registry=self.registry,
        )
        self.resources = Gauge(
            "tailrace_operator_resources",
            "Resources by their state: " + ", ".join(STATES) + ".",
            ("kind", "state"),
            registry=self.registry,
        )
        self.api_calls = Counter(
            "tailrace_operator_api_calls",
            "Calls of the Kubernetes API, but for watching.",
            ("verb", "resource"),
            registry=self.registry,
        )
        self.lease_held = Gauge(
            "tailrace_operator_lease_held",
            "1 while this process is the operator that writes.",
            registry=self.registry,
        )
        self._state_of: dict[tuple[str, str, str], str] = {}

    def called(self, verb: str, resource: str) -> None:
        """A call of the Kubernetes API."""
        self.api_calls.labels(verb, resource).inc()

    def is_in_state(self, key: tuple[str, str, str], state: str | None) -> None:
        """A resource (kind, namespace, name) is in this state now; None: it is gone."""
        kind, before = key[0], self._state_of.get(key)
        if before is not None:
            self.resources.labels(kind, before).dec()
            del self._state_of[key]
        if state is not None:
            self._state_of[key] = state
            self.resources.labels(kind, state).inc()


@asynccontextmanager
async def served(
    metrics: Metrics, *, host: str, port: int, is_ready: Callable[[], bool]
) -> AsyncIterator[None]:
    """The HTTP server, as long as the block lasts; OSError when the port is taken."""
    app = web.Application()

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"ready": is_ready()}, status=200 if is_ready() else 503)

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app.add_routes([web.get("/live", live), web.get("/ready", ready), web.get("/metrics", scrape)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
