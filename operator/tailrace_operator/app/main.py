"""The composition root: builds all parts, runs them until a signal, and ends them in order."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.config.config_exception import ConfigException

from tailrace.servers.logs import configure_logs
from tailrace.servers.settings import (
    Server,
    WrongSettingsError,
    read_settings,
)
from tailrace_operator.app.handlers import watch
from tailrace_operator.app.metrics import Metrics, served
from tailrace_operator.app.reconcile import Reconciler
from tailrace_operator.app.settings import Settings
from tailrace_operator.app.workers import Workers
from tailrace_operator.kube.client import Kube, KubeError, UnavailableError
from tailrace_operator.kube.lease import Lease, LeaseLostError
from tailrace_operator.kube.served import ServedNamespaces
from tailrace_operator.plan.names import GROUP_VERSION
from tailrace_operator.ring.admin import Rings

CRD_POLL_S = 5.0
# How long a release is silent before another may serve its namespaces: a resource that is well is
# reconciled once in a resync, and a pass may take a minute.
SERVED_RESYNCS = 3
SERVED_S_MIN = 180.0

OPERATOR = Server(
    title="the operator",
    prefix="TAILRACE_OPERATOR_",
    page="docs/operator.md",
    names=tuple(Settings.model_fields),
)

# They log every object that changes, and every connection.
QUIET = ("kopf", "aiohttp.access")

log = structlog.get_logger()


def main() -> int:
    """Run the operator; return the exit code."""
    if not __debug__:
        print("tailrace_operator needs its assertions: start it without -O", file=sys.stderr)
        return 2
    try:
        settings = read_settings(OPERATOR, Settings, os.environ)
    except WrongSettingsError as error:
        for mistake in error.mistakes:
            print(f"error: {mistake}", file=sys.stderr)
        return 2
    configure_logs(settings.log_level, quiet=QUIET)
    try:
        return asyncio.run(_main(settings))
    except* LeaseLostError as lost:
        log.error("lease.lost", reason=str(lost.exceptions[0]))
    except* KubeError as refused:
        log.error("operator.ended", reason=str(refused.exceptions[0]))
    except* OSError as failed:
        log.error("operator.ended", reason=str(failed.exceptions[0]))
    return 1


async def _main(settings: Settings) -> int:
    try:
        configuration = await load_configuration()
    except ConfigException as error:
        print(
            f"no cluster to work in ({error}): run it in a pod, or set KUBECONFIG", file=sys.stderr
        )
        return 2
    stop = asyncio.Event()
    await operate(settings, configuration, stop, catch_signals=partial(_catch_signals, stop))
    return 0


async def load_configuration() -> Configuration:
    """Load the configuration of this pod, else of KUBECONFIG. ConfigException: there is neither."""
    configuration = Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG"):
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


async def operate(
    settings: Settings,
    configuration: Configuration,
    stop: asyncio.Event,
    *,
    catch_signals: Callable[[], None] = lambda: None,
) -> None:
    """Run until `stop` is set, which `catch_signals` may have signals do."""
    metrics = Metrics()
    kube = Kube(configuration, timeout_s=settings.api_seconds, on_call=metrics.called)
    rings = Rings(settings.broker_address, timeout_s=settings.broker_seconds)
    lease = Lease(
        kube,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.identity,
        duration_s=settings.lease_seconds,
    )
    metrics.lease_held.set_function(lambda: float(lease.is_held))
    catch_signals()
    watched = ", ".join(settings.namespace_names) or "all"
    log.info("operator.started", version=version("tailrace"), namespaces=watched)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(kube.close)
        stack.push_async_callback(lease.release)
        stack.push_async_callback(rings.close)
        await stack.enter_async_context(
            served(
                metrics,
                host=settings.http_host,
                port=settings.http_port,
                is_ready=lambda: lease.is_held,
            )
        )
        if await _until(stop, _prepare(kube, lease)):
            served_namespaces = ServedNamespaces(
                kube,
                release=f"{settings.lease_namespace}/{settings.lease_name}",
                duration_s=max(SERVED_S_MIN, SERVED_RESYNCS * settings.resync_seconds),
            )
            stack.push_async_callback(served_namespaces.release)
            reconciler = Reconciler(
                kube,
                rings,
                served_namespaces,
                metrics,
                default_image=settings.broker_image,
                identity=settings.identity,
            )
            await _until(stop, _work(reconciler, lease, settings, configuration, catch_signals))
    log.info("operator.stopped")


async def _prepare(kube: Kube, lease: Lease) -> None:
    """Wait until the CRDs are there and no other operator writes."""
    has_reported = False
    while not await _is_served(kube):
        if not has_reported:
            log.warning("crds.awaited", group_version=GROUP_VERSION, remedy="apply crds/")
            has_reported = True
        await asyncio.sleep(CRD_POLL_S)
    await lease.acquire()


async def _is_served(kube: Kube) -> bool:
    try:
        return await kube.has_kind("StreamCluster") and await kube.has_kind("Topic")
    except UnavailableError as error:
        log.warning("api.awaited", reason=str(error))
        return False


async def _work(
    reconciler: Reconciler,
    lease: Lease,
    settings: Settings,
    configuration: Configuration,
    on_started: Callable[[], None],
) -> None:
    """Work for ever; LeaseLostError."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lease.keep())
        workers = Workers(tasks, reconciler, settings)
        await watch(
            workers,
            configuration,
            namespaces=settings.namespace_names,
            on_started=on_started,
        )
        raise RuntimeError("kopf exited; its log says why")


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Return whether `work` was done before `stop`, which ends it."""
    async with asyncio.TaskGroup() as tasks:
        running, waiting = tasks.create_task(work), tasks.create_task(stop.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        waiting.cancel()
    return not running.cancelled()


def _catch_signals(stop: asyncio.Event) -> None:
    """Called again when kopf has started, which sets handlers of its own."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
