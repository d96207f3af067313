"""How a broker is reached, the same for both clients: its URL, trust in it, and proof of oneself.

What a caller gave wrong is an `OptionError`, before anything is sent.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from socket import create_connection
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from tailrace.errors import ConnectionFailedError, UntrustedCertificateError, WrongSchemeError

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_PORTS = {"http": 80, "https": 443}
BROKER_PORT = 9250  # of TAILRACE_PORT, when it is not set
HANDSHAKE_S_MAX = 2.0
# What OpenSSL calls an answer that is no TLS; the second since 3.2.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_HOST_AND_PORT = re.compile(r"((?:\[[0-9A-Fa-f:.]+\]|[^]/:@?#\s[]+))(:[0-9]+)?/?")
_TOKEN = re.compile(r"[!-~]+")  # visible ASCII, as a header's value can hold it


class OptionError(ValueError):
    """A client cannot be made of this; `option` is the parameter's name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class ClientOptions(TypedDict, total=False):
    """What every client takes: see `tailrace.sync.Client`."""

    timeout_s: float
    token: str | None
    ca_file: str | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL's parts; `url` has no slash at its end."""

    url: str
    is_tls: bool
    host: str
    port: int


def with_scheme(url: str) -> str:
    """ "localhost:9250" and "localhost" -> "http://localhost:9250"; all else as it is."""
    match_ = _HOST_AND_PORT.fullmatch(url)
    if match_ is None:
        return url
    return f"http://{url}" if match_[2] else f"http://{match_[1]}:{BROKER_PORT}"


def parse_endpoint(url: str) -> Endpoint:
    """http://host:port, https://host:port, host:port or host, else OptionError."""
    url = with_scheme(url)
    with suppress(ValueError):  # an address that is none, or a port that none can be
        parts = urlsplit(url)
        is_base_url = parts.path in ("", "/") and not parts.query and not parts.fragment
        is_plain = parts.username is None and parts.password is None
        if parts.scheme in DEFAULT_PORTS and parts.hostname and is_base_url and is_plain:
            port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
            return Endpoint(url.rstrip("/"), parts.scheme == "https", parts.hostname, port)
    raise OptionError("url", f'"{url}" is not a broker\'s URL, like http://127.0.0.1:9250')


def authorization(token: str | None) -> dict[str, str]:
    """The header that carries a token; empty without one. OptionError never shows the token."""
    if token is None:
        return {}
    if not isinstance(token, str):
        raise OptionError("token", f"the token is {type(token).__name__}; give it as text")
    if not _TOKEN.fullmatch(token):
        raise OptionError(
            "token", "the token is not visible ASCII without spaces; give it as it was issued"
        )
    return {"Authorization": f"Bearer {token}"}


def tls_context(endpoint: Endpoint, ca_file: str | None) -> "SSLContext | None":
    """Trusts the certificates of `ca_file` alone, without it those of the system; None: no TLS."""
    if not endpoint.is_tls:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(
            "ca_file",
            f'ca_file "{ca_file}" cannot be used ({reason}); name a file of CA certificates in PEM',
        ) from error


def connection_failed(
    url: str, error: BaseException, *, write_attempted: bool
) -> ConnectionFailedError:
    """The client's error for what a connection raised; finds a refused certificate in it."""
    cause = certificate_reason(error)
    if cause is not None:
        return UntrustedCertificateError(url, cause)
    if _is_no_tls(error):
        return WrongSchemeError(url)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        reason = "timed out"
    port = parse_endpoint(url).port
    if not url.endswith(f":{port}"):  # a URL without one has that of its scheme
        reason = f"port {port}: {reason}"
    return ConnectionFailedError(url, reason, write_attempted=write_attempted)


def speaks_tls(endpoint: Endpoint) -> bool:
    """Whether a TLS handshake with this host and port succeeds, whatever the certificate."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent
    with suppress(OSError, UnicodeError):  # no host name: the last
        address = (endpoint.host, endpoint.port)
        with create_connection(address, HANDSHAKE_S_MAX) as plain, context.wrap_socket(plain):
            return True
    return False


def certificate_reason(error: BaseException | None) -> str | None:
    """Why the peer's certificate was refused, when that is what went wrong."""
    while error is not None:
        reason: str | None = getattr(error, "verify_message", None)  # ssl.SSLCertVerificationError
        if reason is not None:
            return reason or str(error)
        error = getattr(error, "certificate_error", None) or error.__cause__  # the first: aiohttp's
    return None


def _is_no_tls(error: BaseException | None) -> bool:
    """Whether a TLS handshake met something else, as a port of plain http."""
    while error is not None:
        if getattr(error, "reason", None) in _NO_TLS:  # ssl.SSLError
            return True
        error = error.__cause__
    return False
