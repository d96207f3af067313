"""Configuration from the environment, prefix `TAILRACE_`; read once, in `__main__`."""

import re
from functools import cached_property, partial
from pathlib import Path
from socket import gethostname
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tailrace.wire import LARGEST_REQUEST_BYTES
from tailrace_broker.codec.columns import PAYLOAD_BYTES_MAX
from tailrace_broker.core.ring.arithmetic import UNITS
from tailrace_broker.net.broker import ClientView
from tailrace_broker.net.http.origin import ANY, WebAccess
from tailrace_broker.net.outside import ORDINAL_PLACE, Outside
from tailrace_broker.node.ring import RingSettings

MEBIBYTE = 1024 * 1024
# For the largest batch that a request can bring, header and block edges included.
LARGEST_BUFFER_BYTES = PAYLOAD_BYTES_MAX + PAYLOAD_BYTES_MAX // 4
# By how much the ports for other brokers are above the base port.
PEER_PORT = 5
REPLICATION_PORT = 6
PORT_MAX = 65535
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


class Settings(BaseSettings):
    """Every field: unit, default and why."""

    # An empty variable counts as none: an empty path would be the present directory.
    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    data_dir: Path
    """Where this broker keeps its data; no default, so that nothing is stored by accident."""

    host: str = "127.0.0.1"
    """Address of the listeners; loopback, since there is no access control yet."""

    advertised_host: str | None = None
    """The host name for clients; the address of the listeners unless that is a wildcard."""

    ring_name: str = "local"
    """What people call this ring; the operator sets the name of the StreamCluster."""

    port: int = Field(default=9250, ge=1, le=65532)
    """Base port: public +0, produce +1, read +2, metrics +3; with `TAILRACE_PEER_HOST` +5 for other
    brokers."""

    ordinal: int = Field(default=0, ge=0, le=UNITS - 1)
    """This broker's number in its ring; the data directory keeps it, since disk and place in the
    ring belong together."""

    peer_host: str | None = None
    """Host of each broker of the ring, `{ordinal}` in place of its number, as in
    `events-{ordinal}.events`; unset, the ring is this broker alone, and founds itself."""

    port_stride: int = Field(default=0, ge=0, le=65535)
    """By how much the base port of each broker is above that of the broker before it: more than 0
    where brokers share a host."""

    ring_secret: SecretStr = SecretStr("")
    """What brokers of one ring prove to each other that they know, and admin requests name; visible
    ASCII; empty: nobody is asked."""

    copies: int = Field(default=3, ge=1, le=3)
    """Copies of each range of a ring that this broker founds, at most one a broker; 3 keeps every
    acknowledged event when a broker is lost."""

    failback_ms: int = Field(default=30_000, ge=100)
    """How long a broker that has lost the lead of its range must be in sync before it leads again;
    doubled by each further loss within two hours, as each change pauses producers."""

    allowed_origins: str = ""
    """Origins whose web pages may change and read data, besides the broker's own, with commas:
    `https://console.example,http://localhost:3000`; `*`: every page that is open in a browser which
    reaches the broker."""

    allowed_hosts: str = ""
    """Host names that requests may have where `TAILRACE_HOST` is a loopback address, besides that
    address, `TAILRACE_ADVERTISED_HOST` and `localhost`, with commas; `*`: any."""

    auto_create_topics: bool = True
    """Whether the first produce to a topic creates it, and a consumer's registration that asks for
    it: a newcomer's first curl works. The operator sets it off in its pods."""

    max_request_bytes: int = Field(default=16 * MEBIBYTE, ge=1024, le=LARGEST_REQUEST_BYTES)
    """Bound of one produce body; larger bodies gain nothing in speed."""

    header_seconds: float = Field(default=10, gt=0)
    """Request line and headers arrive in this time, else 408."""

    request_seconds: float = Field(default=20, gt=0)
    """A whole request arrives in this time, else 408: what it holds is needed by others."""

    idle_seconds: float = Field(default=75, gt=0)
    """A connection without a request is closed."""

    answer_seconds: float = Field(default=20, gt=0)
    """A peer takes 1 MiB of its answer in this time, or all that is left, else it is cut off: what
    waits for it holds memory. As long a read waits for memory, else 503."""

    connections_max: int = Field(default=8192, ge=1)
    """Open connections, all listeners but metrics; over it new ones are answered 503 and closed."""

    groups_max: int = Field(default=100_000, ge=1)
    """Consumer groups that this broker coordinates; over it a new one is answered 429."""

    group_consumers_max: int = Field(default=10_000, ge=1)
    """Consumers of one group; over it a registration is answered 429."""

    delete_retention_ms: int = Field(default=24 * 3_600_000, ge=0)
    """A deleted topic's data stays in the trash this long."""

    sealed_keep_ms: int = Field(default=660_000, ge=100)
    """Retention leaves sealed partitions as they are for this long: their producers may repeat
    requests in that time, which must be recognised. It decides about them twice a minute. A
    partition without records leaves the ring as long after: groups count what they had not read."""

    produce_memory_bytes: int = Field(default=64 * MEBIBYTE, ge=MEBIBYTE)
    """Bodies in flight, all connections together; over it producers get 429."""

    forward_seconds: float = Field(default=10, gt=0)
    """How long a broker has a request that another one leads taken there, by whoever leads
    meanwhile, else 503; a takeover takes a second or two."""

    forwarded_max: int = Field(default=8192, ge=1)
    """Appends and reads that wait for other brokers, to which they were forwarded; over it new ones
    get 503."""

    segment_bytes: int = Field(default=256 * MEBIBYTE, ge=MEBIBYTE, le=1024 * MEBIBYTE)
    """A segment is finished by the write that passes this; 32-bit positions bound it."""

    scrub_bytes_per_second: int = Field(default=2 * MEBIBYTE, ge=0)
    """Pace at which stored data is read again and checked: a TiB in six days; 0: never."""

    journal_bytes: int = Field(default=32 * MEBIBYTE, ge=8 * MEBIBYTE, le=1024 * MEBIBYTE)
    """Disk for small appends on their way to the segments; as much memory at most holds them."""

    cache_bytes: int = Field(default=32 * MEBIBYTE, ge=0)
    """Recent batches kept in memory for readers near the end, all partitions together."""

    read_memory_bytes: int = Field(default=96 * MEBIBYTE, ge=LARGEST_BUFFER_BYTES)
    """Answers that are not sent yet; over it readers wait `TAILRACE_ANSWER_SECONDS`, then 503."""

    io_buffer_bytes: int = Field(default=64 * MEBIBYTE, ge=LARGEST_BUFFER_BYTES)
    """Aligned buffers of the I/O threads, to write from and to check what is on disk."""

    io_threads: int = Field(default=2, ge=1, le=64)
    """Threads for disk calls and large compressions; more only take the interpreter in turns."""

    outside_url: str = ""
    """URL of each broker for clients outside of the brokers' network, `{ordinal}` in place of its
    number, as in `https://events-{ordinal}.example:443`. Answers name it to requests whose `Host`
    is one of these, or of `TAILRACE_OUTSIDE_HOSTS`."""

    outside_port_stride: int = Field(default=0, ge=0, le=65535)
    """By how much each broker's port outside is above that of the broker before it: 1 for node
    ports in a row."""

    outside_hosts: str = ""
    """Hosts outside that lead to any broker, with commas: of a load balancer or an ingress."""

    topic_metrics_max: int = Field(default=100, ge=0, le=10_000)
    """Topics that have metrics of their own, the first ones by name; 0: none has."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""

    @property
    def client_view(self) -> ClientView:
        """The address that clients get for this broker."""
        is_wildcard = self.host in ("", "0.0.0.0", "::")  # noqa: S104  # compared, not bound
        host = self.advertised_host or (gethostname() if is_wildcard else self.host)
        return ClientView(host, self.port + 1, self.port + 2, self.ring_name)

    @property
    def web_access(self) -> WebAccess:
        """Return which web pages may send requests, and under which names."""
        return WebAccess(
            listens_on=self.host,
            own_hosts=(self.host, self.client_view.host, self.address_of(self.ordinal)[0]),
            allowed_hosts=_listed(self.allowed_hosts),
            allowed_origins=_listed(self.allowed_origins),
        )

    @cached_property
    def outside(self) -> Outside | None:
        """Return where clients outside reach the brokers. OutsideUrlError."""
        if not self.outside_url:
            return None
        return Outside.read(self.outside_url, self.outside_port_stride, _listed(self.outside_hosts))

    def address_of(self, ordinal: int) -> tuple[str, int]:
        """Host and base port of a broker of the ring, this one included."""
        if self.peer_host is None:
            return self.client_view.host, self.port
        host = self.peer_host.replace(ORDINAL_PLACE, str(ordinal))
        return host, self.port + self.port_stride * (ordinal - self.ordinal)

    @cached_property
    def ring(self) -> RingSettings:
        """Return how this broker reaches the others of its ring; each append asks."""
        return RingSettings(
            is_alone=self.peer_host is None,
            host=self.host,
            peer_port=self.port + PEER_PORT,
            peer_address_of=partial(self._address_with, PEER_PORT),
            replication_port=self.port + REPLICATION_PORT,
            replication_address_of=partial(self._address_with, REPLICATION_PORT),
            copies=self.copies,
            failback_ms=self.failback_ms,
            secret=self.ring_secret.get_secret_value().encode(),
        )

    def _address_with(self, listener: int, ordinal: int) -> tuple[str, int]:
        host, port = self.address_of(ordinal)
        return host, port + listener

    @field_validator("outside_url")
    @classmethod
    def check_outside_url(cls, url: str) -> str:
        """It is read when the first request comes."""
        if url:
            Outside.read(url, 0, ())
        return url

    @field_validator("ring_secret")
    @classmethod
    def check_secret(cls, secret: SecretStr) -> SecretStr:
        """A request names it in a header, which has an end and takes no other characters."""
        if not all("!" <= character <= "~" for character in secret.get_secret_value()):
            raise ValueError(
                "has a space or another character than visible ASCII; make one with "
                "openssl rand -base64 32"
            )
        return secret

    @field_validator("allowed_origins")
    @classmethod
    def check_origins(cls, origins: str) -> str:
        """Check that origins are as browsers write them: in lower case, without a path."""
        listed = [each.lower().removesuffix("/") for each in _listed(origins)]
        for each in listed:
            if each != ANY and not _ORIGIN.fullmatch(each):
                raise ValueError(
                    f'lists "{each}"; write an origin, scheme://host:port as in '
                    "http://localhost:3000, or * for every page"
                )
        return ",".join(listed)

    @field_validator("allowed_hosts")
    @classmethod
    def check_hosts(cls, hosts: str) -> str:
        """Names alone: a port says nothing of who asks."""
        for each in _listed(hosts):
            if "/" in each:
                raise ValueError(f'lists "{each}"; write a host name, without scheme and path')
        return hosts

    @model_validator(mode="after")
    def check_relations(self) -> "Settings":
        """One body at least must fit into the produce memory; brokers have different addresses."""
        if self.produce_memory_bytes < self.max_request_bytes:
            raise ValueError("TAILRACE_PRODUCE_MEMORY_BYTES is below TAILRACE_MAX_REQUEST_BYTES")
        if self.peer_host is None:
            if self.ordinal > 0:
                raise ValueError("TAILRACE_ORDINAL is above 0, but TAILRACE_PEER_HOST is not set")
            return self
        if ORDINAL_PLACE not in self.peer_host and not self.port_stride:
            raise ValueError(
                "TAILRACE_PEER_HOST has no {ordinal} and TAILRACE_PORT_STRIDE is 0: all brokers "
                "would have one address"
            )
        if self.port + REPLICATION_PORT > PORT_MAX:
            raise ValueError(
                f"TAILRACE_PORT leaves no room for the ports up to +{REPLICATION_PORT} of brokers"
            )
        if self.port - self.port_stride * self.ordinal < 1:
            raise ValueError("TAILRACE_PORT_STRIDE leaves no port for broker 0")
        return self


def _listed(text: str) -> tuple[str, ...]:
    """Return the elements between commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))
