"""What several verbs share: the broker's URL, and numbers as people read them."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.sync import Client

DEFAULT_URL = "http://127.0.0.1:9250"
UrlOption = Annotated[
    str, typer.Option("--url", envvar="TAILRACE_URL", help="Any broker's URL.", metavar="URL")
]
TopicArgument = Annotated[str, typer.Argument(help="The topic's name.", metavar="TOPIC")]


def connect(url: str) -> "Client":
    """A client for `url`; a malformed one is a usage error."""
    from tailrace.sync import Client

    try:
        return Client(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error


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
