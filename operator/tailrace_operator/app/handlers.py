"""kopf only watches: it reports changed resources.

All handlers are those of raw events: kopf adds no finalizer, annotation or Event of its own.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import kopf
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.api.spec import CLUSTER_PLURAL, GROUP, TOPIC_PLURAL, VERSION
from tailrace_operator.app.workers import Workers
from tailrace_operator.plan.names import FIELD_MANAGER, MANAGED_BY_LABEL

# Of what a StreamCluster has, those kinds whose change by hand is noticed at once; pods show in
# their StatefulSet. A ring without its Secret looks well until a broker starts again.
_CHILD_KINDS = (
    ("apps", "v1", "statefulsets"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
    ("", "v1", "secrets"),
    ("", "v1", "persistentvolumeclaims"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
)
# A watch that is silent for this long is restarted: its connection may be dead.
_WATCH_SECONDS = 300


async def watch(
    workers: Workers,
    configuration: Configuration,
    *,
    namespaces: tuple[str, ...],
    on_started: Callable[[], None],
) -> None:
    """Until it is cancelled. `namespaces`: none are all; `on_started`: kopf has set its
    handlers of signals, which can be set again."""
    tasks = await kopf.spawn_tasks(
        registry=_registry(workers, configuration),
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    on_started()
    await kopf.run_tasks(tasks, ignored=_AllTasks())


class _EndlessBackoffs:
    """Seconds: a namespace that is gone, with the operator's role in it, ends no other's watch."""

    def __iter__(self) -> Iterator[float]:
        return chain((1, 1, 2, 3, 5, 8, 13), repeat(30))


class _AllTasks(frozenset["asyncio.Task[Any]"]):
    """Tasks that kopf leaves alone in the end, when it has ended its own: it takes all for its own
    that began after it, and would wait for them first.
    """

    def __contains__(self, task: object) -> bool:
        return True


def _registry(workers: Workers, configuration: Configuration) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    @kopf.on.event(GROUP, VERSION, CLUSTER_PLURAL, registry=registry)
    @kopf.on.event(GROUP, VERSION, TOPIC_PLURAL, registry=registry)
    async def saw(event: kopf.RawEvent, **_: Any) -> None:
        workers.saw(event["object"], is_deleted=event["type"] == "DELETED")

    async def saw_child(event: kopf.RawEvent, **_: Any) -> None:
        workers.saw_child(event["object"])

    for group, version, plural in _CHILD_KINDS:
        kopf.on.event(group, version, plural, registry=registry)(saw_child)
    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # CRDs and namespaces need not be watched
    settings.networking.error_backoffs = _EndlessBackoffs()
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + 30
    selector = f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
    for group, _, plural in _CHILD_KINDS:
        settings.watching.label_selectors[group, plural] = selector
    return settings


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return in kopf's terms where the operator's own client calls, and as whom."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=None if configuration.ssl_ca_cert else configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
