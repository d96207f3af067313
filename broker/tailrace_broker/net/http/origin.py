"""Whether a web page may send this request: Host, Origin and Sec-Fetch-Site.

A browser sends what any open page asks for, also to the user's own machine, and without asking the
server for some requests. It says where they come from in headers that no page can set:

| header           | value                            | refused                                   |
|------------------|----------------------------------|-------------------------------------------|
| `Host`           | the name in the request's URL    | all, at a loopback listener that does not |
|                  |                                  | know the name (DNS rebinding)             |
| `Origin`         | the page's scheme, host and port | changes, unless it is this one or allowed |
| `Sec-Fetch-Site` | how the two origins relate       | changes, unless `same-origin` or `none`   |

A target in absolute form (`GET http://host/path`) has the host that counts. Other clients send
neither of the last two headers. An allowed origin gets the CORS headers that let its
pages read answers. Sources: Fetch Standard ("Origin", "CORS protocol"); Fetch Metadata Request
Headers (W3C); RFC 6761 (localhost).
"""

from collections.abc import Iterable
from functools import lru_cache, partial
from ipaddress import ip_address

from tailrace_broker.model.errors import ForeignHostError, ForeignOriginError
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.request import Exchange
from tailrace_broker.net.http.router import (
    Call,
    Listeners,
    Matched,
    Parameters,
    Response,
    Route,
    shortened,
)

ANY = "*"
_SAFE_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_OWN_SITES = frozenset({b"", b"none", b"same-origin"})
_SCHEMES = (b"http://", b"https://")  # the second of a proxy in front of this broker
_PREFLIGHT_HEADERS = {
    "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": "authorization, *",
    "access-control-max-age": "600",
}


class WebAccess:
    """Which hosts and origins this broker takes requests for, as its settings say."""

    def __init__(
        self,
        *,
        listens_on: str = "",
        own_hosts: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        """`listens_on`: the address of the listeners; only one of loopback has its Host checked."""
        hosts = frozenset(map(host_name, (*own_hosts, *allowed_hosts)))
        self._checks_host = is_loopback(host_name(listens_on)) and ANY not in hosts
        self._allows_any = ANY in allowed_origins
        self._origins = frozenset(allowed_origin.encode() for allowed_origin in allowed_origins)
        self._is_known = lru_cache(maxsize=256)(partial(_is_known, hosts))

    def check(self, exchange: Exchange, method: bytes) -> None:
        """ForeignHostError; ForeignOriginError. Marks what comes from an allowed origin."""
        if self._checks_host and not self._is_known(exchange.host):
            raise _foreign_host(exchange.host)
        if exchange.origin or exchange.fetch_site:
            self._check_page(exchange, method)

    def _check_page(self, exchange: Exchange, method: bytes) -> None:
        origin = exchange.origin.lower()
        if origin and (self._allows_any or origin in self._origins):
            exchange.allowed_origin = exchange.origin
        elif method not in _SAFE_METHODS and not (
            self._allows_any or _is_own(origin, exchange.host, exchange.fetch_site)
        ):
            raise _foreign_origin(exchange.origin, exchange.fetch_site)


def host_name(host: str) -> str:
    """Return the host without its port: `LocalHost:9250` -> `localhost`, `[::1]:9250` -> `::1`."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name = text if text.count(":") > 1 else text.partition(":")[0]
    return name.removesuffix(".")


def is_loopback(name: str) -> bool:
    """A name or address that is the machine itself, whatever a name server says."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


async def _allow_request(_: Broker, __: Call) -> Response:
    return Response(content_type="", status=204, headers=_PREFLIGHT_HEADERS)


# What answers the browser's question before a request of an allowed origin (CORS preflight).
PREFLIGHT = Matched(
    Route("OPTIONS", "*", ~Listeners(0), "What pages may send.", (), handle=_allow_request),
    Parameters(),
    (),
)


def _is_known(hosts: frozenset[str], host: bytes) -> bool:
    """Return whether the host is known; an empty one is, since a browser always sends one."""
    name = host_name(host.decode("latin-1"))
    return not host or name in hosts or is_loopback(name)


def _is_own(origin: bytes, host: bytes, fetch_site: bytes) -> bool:
    """Return whether the page is one that this broker has served."""
    is_same = not origin or any(origin == scheme + host.lower() for scheme in _SCHEMES)
    return is_same and fetch_site in _OWN_SITES


def _foreign_host(host: bytes) -> ForeignHostError:
    shown = shortened(host.decode("latin-1"))
    return ForeignHostError(
        f'the broker listens on a loopback address and does not know the host "{shown}"; if '
        "clients use this name, add it to TAILRACE_ALLOWED_HOSTS",
        host=shown,
    )


def _foreign_origin(origin: bytes, fetch_site: bytes) -> ForeignOriginError:
    shown = shortened(origin.decode("latin-1"))
    site = shortened(fetch_site.decode("latin-1"))
    page = shown if origin else f"another origin (Sec-Fetch-Site: {site})"
    return ForeignOriginError(
        f"web pages of {page} are not allowed to change anything; nothing was done. To allow them, "
        "add their origin to the broker's TAILRACE_ALLOWED_ORIGINS",
        origin=shown,
    )
