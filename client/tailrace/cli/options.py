"""What several verbs share: parameters, the client, and numbers as people read them."""

import os
from typing import TYPE_CHECKING

from tailrace.cli.parser import UsageError, parameter, text

if TYPE_CHECKING:
    from tailrace.sync import Client

DEFAULT_URL = "http://127.0.0.1:9250"
OUTPUTS = ("table", "json", "yaml")

TOPIC = parameter("topic", metavar="TOPIC", type=text, help="the topic's name", complete="topic")
URL = parameter(
    "--url",
    metavar="URL",
    type=text,
    help=f"any broker's URL, else $TAILRACE_URL, else {DEFAULT_URL}",
)
OUTPUT = parameter(
    "-o",
    "--output",
    metavar="FORM",
    choices=OUTPUTS,
    default="table",
    help="table for people, json or yaml for programs",
)


def connect(url: str | None, *, timeout_s: float = 30.0) -> "Client":
    """A client for `url`, or for the environment's; a malformed one is a usage error."""
    from tailrace.sync import Client

    name = "--url"
    if url is None:
        name, url = "TAILRACE_URL", os.environ.get("TAILRACE_URL") or DEFAULT_URL
    try:
        return Client(url, timeout_s=timeout_s)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def counted(count: int, noun: str) -> str:
    """ "1 event", "10,000 events"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
