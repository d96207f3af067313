"""The operator's configuration: environment, prefix `TAILRACE_OPERATOR_`; read once, in `main`."""

from importlib.metadata import version
from socket import gethostname
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_PLACES = ("{name}", "{ordinal}", "{namespace}")


class Settings(BaseSettings):
    """Every field: unit, default and why."""

    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_OPERATOR_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    namespaces: str = ""
    """Where resources are served: names, comma-separated; empty: in the whole cluster."""

    broker_image: str = f"tailrace/broker:{version('tailrace')}"
    """What brokers run whose StreamCluster names no image: the operator's own version."""

    broker_url: str = "http://{name}-{ordinal}.{name}-brokers.{namespace}.svc:9250"
    """Where a broker's public port is, `{name}`, `{ordinal}` and `{namespace}` being put in."""

    resync_seconds: float = Field(default=120, ge=1)
    """How often a healthy resource is reconciled; its changes wake the operator."""

    ring_seconds: float = Field(default=15, gt=0)
    """How often a broker of a ring is asked whether leaders and replicas in sync are the
    same: Kubernetes does not show that."""

    waiting_seconds: float = Field(default=1, gt=0)
    """How soon a change under way is reconciled again; later, up to the resync, if it is slow."""

    retry_seconds_max: float = Field(default=60, ge=1)
    """Bound of the wait after an error, which doubles from `waiting_seconds` each time."""

    api_seconds: float = Field(default=15, gt=0)
    """A call of the Kubernetes API is answered in this time."""

    broker_seconds: float = Field(default=5, gt=0)
    """A broker answers in this time; a ring's bootstrap may take four times as long."""

    lease_namespace: str = "tailrace-system"
    """Where the Lease is that only one operator holds; the chart sets the release's namespace."""

    lease_name: str = "tailrace-operator"
    """Its name; operators that serve different namespaces need different ones."""

    lease_seconds: float = Field(default=15, ge=3)
    """After this time without a sign of its holder another may take the Lease; renewed three times
    as often. The holder stops two thirds into it."""

    identity: str = Field(default_factory=gethostname, min_length=1)
    """Who holds the Lease: the pod's name, so that a restarted container goes on at once."""

    http_host: str = "0.0.0.0"  # noqa: S104  # a pod's address is not known before
    """Address of probes and metrics."""

    http_port: int = Field(default=8080, ge=1, le=65535)
    """Port of `/live`, `/ready` and `/metrics`."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""

    @property
    def namespace_names(self) -> tuple[str, ...]:
        """Return the namespaces; empty: all."""
        return tuple(name for each in self.namespaces.split(",") if (name := each.strip()))

    @field_validator("broker_url")
    @classmethod
    def check_pattern(cls, pattern: str) -> str:
        """It must fit every broker of a ring."""
        if "{ordinal}" not in pattern:
            raise ValueError("has no {ordinal}, so that all brokers would have one address")
        rest = pattern
        for place in _PLACES:
            rest = rest.replace(place, "")
        if "{" in rest or "}" in rest:
            raise ValueError(f"has other places than {', '.join(_PLACES)}")
        return pattern

    def broker_address(self, namespace: str, name: str, ordinal: int) -> str:
        """The URL of a broker's public port."""
        return self.broker_url.format(name=name, ordinal=ordinal, namespace=namespace)
