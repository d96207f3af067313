"""One broker of a local ring, to be started beside those that run: where and how it was before."""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tailrace.errors import TailraceError
from tailrace.local.broker import HOST, LocalBroker, is_in_use
from tailrace.local.ring import PORT_STRIDE, RING_FILE, SECRET_FILE, begun_with, member_settings

_LOOPBACK = (HOST, "localhost")


def member_of(top: Path, ordinal: int, *, settings: Mapping[str, str | float]) -> LocalBroker:
    """Broker `ordinal` of the ring below `top`, not started. TailraceError says what to do."""
    count = begun_with(top)
    again = f"tailrace dev --data {top}"
    if count is None:
        raise TailraceError(
            f"{top} holds no ring of several brokers; start one: {again} --brokers 3"
        )
    if count == 1:
        raise TailraceError(f"{top} holds one broker; start it: {again}")
    if ordinal >= count:
        known = "0 and 1" if count == 2 else f"0 to {count - 1}"
        raise TailraceError(f"{top} has brokers {known}, and no broker {ordinal}")
    secret = _secret(top / SECRET_FILE, again)
    port = _port(top / RING_FILE, again) + PORT_STRIDE * ordinal
    broker = LocalBroker(
        top / str(ordinal),
        port=port,
        settings={**settings, **member_settings(ordinal, secret)},
        log_path=top / f"{ordinal}.log",
    )
    if is_in_use(broker.data_dir):
        raise TailraceError(f"broker {ordinal} of {top} runs already: {broker.url}")
    return broker


def local_count(top: Path, url: str) -> int | None:
    """How many brokers of the ring below `top` run or ran, if the URL is one of theirs."""
    try:
        document = json.loads((top / RING_FILE).read_text())
        count, port = int(document["brokers"]), int(document["port"])
        count = max(count, int(document.get("joining", 0)))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    parts = urlsplit(url)
    ports = [port + PORT_STRIDE * ordinal for ordinal in range(count)]
    return count if parts.hostname in _LOOPBACK and parts.port in ports else None


def is_alone(top: Path) -> bool:
    """Whether the one broker below `top` runs, or ran, without listeners for others."""
    try:
        return json.loads((top / RING_FILE).read_text()).get("alone") is True
    except (OSError, ValueError, AttributeError):
        return False


def absent_ordinal(top: Path, url: str) -> int | None:
    """The broker of the ring below `top` whose URL this is, when it is down and others run."""
    try:
        document = json.loads((top / RING_FILE).read_text())
        count, port = int(document["brokers"]), int(document["port"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    parts = urlsplit(url)
    ordinals = [n for n in range(count) if port + PORT_STRIDE * n == parts.port]
    running = [n for n in range(count) if is_in_use(top / str(n))]
    is_absent = parts.hostname in _LOOPBACK and running and ordinals and ordinals[0] not in running
    return ordinals[0] if is_absent else None


def _port(file: Path, again: str) -> int:
    """Of broker 0."""
    port = json.loads(file.read_text()).get("port")  # `begun_with` has read it
    if type(port) is not int:
        raise TailraceError(
            f"{file} does not say the ring's port: end all brokers, and start them with {again}"
        )
    return port


def kept_secret(top: Path) -> str | None:
    """Of the ring below `top`; None: it cannot be read."""
    try:
        return (top / SECRET_FILE).read_text(errors="replace").strip() or None
    except OSError:
        return None


def _secret(file: Path, again: str) -> str:
    """A new one would be none that the others know."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError as error:
        raise TailraceError(
            f"{file} cannot be read ({error.strerror}): put it back, or end all brokers, and start "
            f"them with {again}"
        ) from error
