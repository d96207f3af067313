"""`tailrace context list|use|set|delete`: brokers by name, and which one is meant without a URL."""

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cli.lib.options import OUTPUT
from tailrace.cli.lib.parser import UsageError, Verb, parameter, shown, text
from tailrace.errors import TailraceError
from tailrace.settings.near_names import close_to

if TYPE_CHECKING:
    from tailrace.cli.lib.context_file import Context, Contexts

STANDARD_INPUT = Path("-")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def list_contexts(*, output: str) -> None:
    """List the brokers that have a name here; tokens are not shown."""
    from tailrace.cli.lib.context_file import load
    from tailrace.cli.lib.output import Column, as_table, member, show

    contexts = load()
    documents = [
        _document(name, each, is_current=name == contexts.current)
        for name, each in sorted(contexts.by_name.items())
    ]
    columns = [
        Column("CURRENT", lambda each: "*" if each["current"] else ""),
        member("CONTEXT", "context"),
        member("URL", "url"),
        member("TOKEN", "hasToken"),
        member("CA FILE", "caFile"),
    ]
    show(output, documents, as_table(documents, columns))


def use(*, context: str, output: str) -> None:
    """Have verbs use this broker when neither --url nor $TAILRACE_URL is given."""
    from tailrace.cli.lib.context_file import Contexts, load, save
    from tailrace.cli.lib.output import show

    contexts = load()
    named_context = _found(contexts, context)
    save(Contexts(context, contexts.by_name))
    line = f"✓ {context}: {named_context.url}{_shadow()}"
    show(output, _document(context, named_context, is_current=True), line)


def set_context(
    *,
    context: str,
    broker_url: str,
    token_file: Path | None,
    ca_file: Path | None,
    output: str,
) -> None:
    """Keep a broker's URL under a name, in place of what the name meant.

    The first one is used from then on; others after: tailrace context use
    """
    from tailrace.cli.lib.context_file import Context, Contexts, load, save
    from tailrace.cli.lib.output import show
    from tailrace.protocol.endpoint import OptionError
    from tailrace.sync import Client

    try:
        Client(broker_url, ca_file=None if ca_file is None else str(ca_file)).close()
    except OptionError as error:
        name = "--ca-file" if error.option == "ca_file" else "URL"
        raise UsageError(f"{name}: {error}") from error
    token = None if token_file is None else _read_token(token_file)
    made = Context(broker_url, token, None if ca_file is None else str(ca_file.absolute()))
    contexts = load()
    current = contexts.current if contexts.by_name else context
    save(Contexts(current, {**contexts.by_name, context: made}))
    is_current = current == context
    remedy = _shadow() if is_current else f"; use it: tailrace context use {context}"
    line = f"✓ {context}: {broker_url}{remedy}"
    show(output, _document(context, made, is_current=is_current), line)


def delete(*, context: str, output: str) -> None:
    """Forget a name, with its token."""
    from tailrace.cli.lib.context_file import Contexts, load, save
    from tailrace.cli.lib.output import show

    contexts = load()
    _found(contexts, context)
    is_current = context == contexts.current
    left = {name: each for name, each in contexts.by_name.items() if name != context}
    save(Contexts(None if is_current else contexts.current, left))
    note = ", and no other is used now: tailrace context use" if is_current and left else ""
    document = {"context": context, "deleted": True}
    show(output, document, f"✓ {context}: deleted{note}")


def _found(contexts: "Contexts", name: str) -> "Context":
    """TailraceError: there is none of this name."""
    named_context = contexts.by_name.get(name)
    if named_context is None:
        raise TailraceError(
            f"there is no context {shown(name)}{close_to(name, list(contexts.by_name))}. "
            "Those that exist: tailrace context list"
        )
    return named_context


def _document(name: str, context: "Context", *, is_current: bool) -> dict[str, object]:
    return {
        "context": name,
        "url": context.url,
        "hasToken": context.token is not None,
        "caFile": context.ca_file,
        "current": is_current,
    }


def _shadow() -> str:
    """What keeps the current context from being used."""
    return "; $TAILRACE_URL is set, and goes before it" if os.environ.get("TAILRACE_URL") else ""


def _read_token(file: Path) -> str:
    """Its one line; UsageError."""
    with open(0, "rb") if file == STANDARD_INPUT else file.open("rb") as stream:
        token = stream.read().strip()
    if not re.fullmatch(rb"[\x21-\x7e]+", token):
        raise UsageError("--token-file: it is to hold one line of visible ASCII, and holds another")
    return token.decode()


def _context_name(word: str) -> str:
    if _NAME.fullmatch(word):
        return word
    raise argparse.ArgumentTypeError(
        f"{shown(word)} is not 1 to 63 of A-Z a-z 0-9 . _ - that start with a letter or digit"
    )


_CONTEXT = parameter(
    "context", metavar="NAME", type=_context_name, help="the context's name", complete="context"
)
LIST = Verb(list_contexts, (OUTPUT,), ("tailrace context list",))
USE = Verb(use, (_CONTEXT, OUTPUT), ("tailrace context use staging",))
SET = Verb(
    set_context,
    (
        _CONTEXT,
        parameter("broker_url", metavar="URL", type=text, help="any of its brokers' URL"),
        parameter(
            "--token-file",
            metavar="FILE",
            type=Path,
            help="its line is kept, and sent as bearer token; - is standard input",
            complete="file",
        ),
        parameter(
            "--ca-file",
            metavar="FILE",
            type=Path,
            help="certificates (PEM) to trust in place of the system's; read at each use",
            complete="file",
        ),
        OUTPUT,
    ),
    (
        "tailrace context set local http://127.0.0.1:9250",
        "echo $TOKEN | tailrace context set prod https://events.example:9250 --token-file -",
    ),
)
DELETE = Verb(delete, (_CONTEXT, OUTPUT), ("tailrace context delete staging",))
