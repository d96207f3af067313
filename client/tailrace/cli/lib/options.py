"""What several verbs share: parameters, the client, and numbers as people read them."""

import argparse
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.cli.lib.parser import UsageError, parameter, shown, text
from tailrace.errors import ConnectionFailedError, TailraceError, WrongSchemeError

if TYPE_CHECKING:
    from tailrace.sync import Client

DEFAULT_URL = "http://127.0.0.1:9250"
OUTPUTS = ("table", "json", "yaml")

TOPIC = parameter("topic", metavar="TOPIC", type=text, help="the topic's name", complete="topic")
URL = parameter(
    "--url",
    metavar="URL",
    type=text,
    help=f"any broker's URL, or host:port, else $TAILRACE_URL, else the context's, else "
    f"{DEFAULT_URL}; can precede the verb",
)
OUTPUT = parameter(
    "-o",
    "--output",
    metavar="FORM",
    choices=OUTPUTS,
    default="table",
    help="table for people, json or yaml for programs",
)

DRY_RUN = parameter(
    "--dry-run", action="store_true", help="change nothing, and print what would be changed"
)


class Access(NamedTuple):
    """A broker, and for each of the client's parameters who gave it, as an error names them."""

    url: str
    token: str | None
    ca_file: str | None
    origins: Mapping[str, str]


def group_name(word: str) -> str:
    """The type of names of groups and consumers."""
    text(word)
    if re.fullmatch(r"[^\s/]{1,249}", word) and word.isprintable():
        return word
    raise argparse.ArgumentTypeError(
        f"{shown(word)} is not 1 to 249 visible characters, none of them /"
    )


def connect(url: str | None, *, timeout_s: float = 30.0) -> "Client":
    """A client for `url`, or for the environment's, or for that of the current context.

    UsageError: what it cannot be made of.
    """
    from tailrace.protocol.endpoint import OptionError
    from tailrace.sync import Client

    chosen = target(url)
    try:
        return Client(chosen.url, timeout_s=timeout_s, token=chosen.token, ca_file=chosen.ca_file)
    except OptionError as error:
        raise UsageError(f"{chosen.origins[error.option]}: {error}") from error


def target(url: str | None) -> Access:
    """What to connect to. A context's token goes to that context's broker alone."""
    token = os.environ.get("TAILRACE_TOKEN") or None
    ca_file = os.environ.get("TAILRACE_CA_FILE") or None
    origins = {"url": "--url", "token": "TAILRACE_TOKEN", "ca_file": "TAILRACE_CA_FILE"}
    if url is None:
        origins["url"] = "TAILRACE_URL"
        url = os.environ.get("TAILRACE_URL") or None
    if url is not None:
        return Access(url, token, ca_file, origins)
    from tailrace.cli.lib.context_file import load

    contexts = load()
    used = contexts.used
    if used is None:
        # In a broker's own pod; its secret goes to no other address.
        token = token or os.environ.get("TAILRACE_RING_SECRET") or None
        return Access(DEFAULT_URL, token, ca_file, origins)
    named = f'context "{contexts.current}"'
    origins["url"] = named
    if token is None:
        token, origins["token"] = used.token, named
    if ca_file is None:
        ca_file, origins["ca_file"] = used.ca_file, named
    return Access(used.url, token, ca_file, origins)


def context_note(url: str) -> str:
    """Behind an error about `url`: the context that it is of, since nobody has typed it."""
    from contextlib import suppress

    with suppress(TailraceError, OSError, UsageError):
        from tailrace.protocol.endpoint import parse_endpoint

        chosen = target(None)
        if parse_endpoint(chosen.url).url == url and chosen.origins["url"].startswith("context"):
            return f". That is the URL of {chosen.origins['url']}"
    return ""


def with_right_scheme(error: ConnectionFailedError) -> ConnectionFailedError:
    """The same error, or the one that says that the port speaks TLS, found by a handshake."""
    from tailrace.protocol.endpoint import parse_endpoint, speaks_tls

    endpoint = parse_endpoint(error.url)
    return error if endpoint.is_tls or not speaks_tls(endpoint) else WrongSchemeError(error.url)


def counted(count: int, noun: str) -> str:
    """ "1 event", "10,000 events"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def with_sealed(opened: str, sealed: int) -> str:
    """ "4 partitions (12 sealed)": which take records, and how many do not, if there are such."""
    return opened + (f" ({sealed} sealed)" if sealed else "")


def partitions_text(topic: Mapping[str, Any]) -> str:
    """Likewise of a topic as the API describes it."""
    sealed = topic["sealedPartitions"]
    return with_sealed(str(topic["partitions"] - sealed), sealed)


def size_text(size_bytes: int) -> str:
    """ "512 bytes", "5.1 MiB": one decimal from a KiB on."""
    if size_bytes < 1024:
        return counted(size_bytes, "byte")
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:,.1f} {unit}"


def short_size(size_bytes: int) -> str:
    """Of a disk, as `df -h`: "38M", "1.5G"; powers of 1024, two digits at least from a K on."""
    size = float(size_bytes)
    for unit in "BKMGT":
        if size < 1000 or unit == "T":
            break
        size /= 1024
    return f"{size:.1f}{unit}" if size < 9.95 and unit != "B" else f"{size:.0f}{unit}"
