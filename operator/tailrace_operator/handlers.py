"""What kopf is used for: watching. It tells of resources that have changed, and nothing else.

All handlers are those of raw events: kopf adds no finalizer, annotation or Event of its own.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import kopf
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.names import labels
from tailrace_operator.spec import CLUSTER_PLURAL, GROUP, TOPIC_PLURAL, VERSION
from tailrace_operator.workers import Workers

_MANAGED_BY = "app.kubernetes.io/managed-by"
# A watch that says nothing for so long is begun anew: its connection may be dead without a sign.
_WATCH_SECONDS = 300


async def watch(
    workers: Workers,
    configuration: Configuration,
    *,
    namespaces: tuple[str, ...],
    on_started: Callable[[], None],
) -> None:
    """Until it is cancelled. `namespaces`: none are all; `on_started`: kopf has set its
    handlers of signals, which can be set anew."""
    tasks = await kopf.spawn_tasks(
        registry=_registry(workers, configuration),
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    on_started()
    await kopf.run_tasks(tasks, ignored=_AllTasks())


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

    @kopf.on.event("apps", "v1", "statefulsets", registry=registry)
    async def saw_child(event: kopf.RawEvent, **_: Any) -> None:
        workers.saw_child(event["object"])

    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # CRDs and namespaces need not be watched
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + 30
    managed_by = labels("")[_MANAGED_BY]
    settings.watching.label_selectors["apps", "statefulsets"] = f"{_MANAGED_BY}={managed_by}"
    return settings


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Where the operator's own client calls, and as whom, in kopf's terms."""
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
