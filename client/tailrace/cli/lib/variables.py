"""The `TAILRACE_…` variables of a command's environment; one that has no meaning is a mistake."""

from collections.abc import Mapping

from tailrace.cli.lib.parser import UsageError
from tailrace.servers.settings import CLIENT_VARIABLES, Server, unknown_settings

PREFIX = "TAILRACE_"
# `tailrace dev` hands them on, and in a broker's pod they are set. A client cannot import them.
BROKER_SETTINGS = (
    "data_dir",
    "host",
    "advertised_host",
    "ring_name",
    "port",
    "ordinal",
    "peer_host",
    "port_stride",
    "ring_secret",
    "copies",
    "failback_ms",
    "forward_seconds",
    "forwarded_max",
    "allowed_origins",
    "allowed_hosts",
    "auto_create_topics",
    "max_request_bytes",
    "header_seconds",
    "request_seconds",
    "idle_seconds",
    "answer_seconds",
    "connections_max",
    "groups_max",
    "group_consumers_max",
    "delete_retention_ms",
    "sealed_keep_ms",
    "produce_memory_bytes",
    "segment_bytes",
    "scrub_bytes_per_second",
    "journal_bytes",
    "cache_bytes",
    "read_memory_bytes",
    "io_buffer_bytes",
    "io_threads",
    "outside_url",
    "outside_port_stride",
    "outside_hosts",
    "topic_metrics_max",
    "log_level",
)
_COMMAND = Server(
    title="tailrace",
    prefix=PREFIX,
    page="docs/cli.md and docs/settings.md",
    names=(*(name.removeprefix(PREFIX).lower() for name in CLIENT_VARIABLES), *BROKER_SETTINGS),
    others=("TAILRACE_OPERATOR_",),
)


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise UsageError with each variable that is neither a client's, nor a server's."""
    mistakes = unknown_settings(_COMMAND, environment)
    if mistakes:
        raise UsageError("; ".join(mistakes))
