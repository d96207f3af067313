"""Where clients outside of the brokers' network reach them: behind node ports, balancers, ingress.

Answers name other brokers by the addresses that brokers use between each other, which nobody
outside can reach. Answers to a request whose `Host` is an outside name have outside addresses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

ORDINAL_PLACE = "{ordinal}"
_PORTS = {"http": 80, "https": 443}


class OutsideUrlError(ValueError):
    """The text is no URL of brokers."""


@dataclass(frozen=True)
class Outside:
    """`host` has `{ordinal}` for the broker's number, or brokers share it and differ by port."""

    scheme: str
    host: str
    port: int  # of broker 0
    port_stride: int
    hosts: frozenset[str] = field(default_factory=frozenset)  # that lead to any broker

    @classmethod
    def read(cls, url: str, port_stride: int, hosts: Iterable[str]) -> "Outside":
        """OutsideUrlError."""
        parts = urlsplit(url)
        try:
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            port = None
        is_whole = parts.path or parts.query or parts.fragment or "@" in parts.netloc
        if port is None or parts.scheme not in _PORTS or not parts.hostname or is_whole:
            raise OutsideUrlError(
                "a URL of each broker, with http or https, host and port, as in "
                "https://events-{ordinal}.example:443"
            )
        known = frozenset(host.lower() for host in hosts)
        return cls(parts.scheme, parts.hostname, port, port_stride, known)

    def address_of(self, ordinal: int) -> tuple[str, int]:
        """Host and port of a broker."""
        host = self.host.replace(ORDINAL_PLACE, str(ordinal))
        return host, self.port + self.port_stride * ordinal

    def url_of(self, ordinal: int) -> str:
        """Return the URL of a broker."""
        host, port = self.address_of(ordinal)
        return f"{self.scheme}://{host}:{port}"

    def has(self, host: str) -> bool:
        """Whether this name, in lower case and without a port, is one of those outside."""
        return host in self.hosts or _form(self.host).fullmatch(host) is not None


@lru_cache(maxsize=4)
def _form(host: str) -> re.Pattern[str]:
    return re.compile(re.escape(host).replace(re.escape(ORDINAL_PLACE), "[0-9]+"))
