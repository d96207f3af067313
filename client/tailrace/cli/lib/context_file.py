"""The file of named brokers, `$XDG_CONFIG_HOME/tailrace/contexts.json`: for its owner alone.

{"current": "prod", "contexts": {"prod": {"url": "https://…", "token": "…", "caFile": "/…"}}}
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.errors import TailraceError

FILE_MODE = 0o600  # it holds tokens
FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class Context:
    """How to reach a broker."""

    url: str
    token: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of them; `current`: the one that verbs without a URL use."""

    current: str | None = None
    by_name: Mapping[str, Context] = field(default_factory=dict)

    @property
    def used(self) -> Context | None:
        """The current one."""
        return self.by_name[self.current] if self.current is not None else None


def contexts_path() -> Path | None:
    """None: this user has no home (as in a container), nor is $XDG_CONFIG_HOME set."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(folder):  # the XDG specification has others ignored # noqa: PTH117
        return Path(folder) / "tailrace" / "contexts.json"
    with suppress(RuntimeError):
        return Path.home() / ".config" / "tailrace" / "contexts.json"
    return None


def load() -> Contexts:
    """None without a file. TailraceError: one that does not read as above; OSError."""
    path = contexts_path()
    if path is None:
        return Contexts()
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    try:
        return _parsed(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise TailraceError(
            f"{path} is not a file of contexts: repair it, or remove it and set them again with "
            "tailrace context set"
        ) from error


def save(contexts: Contexts) -> None:
    """In place of what was there, as a whole. TailraceError; OSError."""
    path = contexts_path()
    if path is None:
        raise TailraceError(
            "there is no home directory to keep contexts in: set XDG_CONFIG_HOME to a directory, "
            "or give --url or TAILRACE_URL instead"
        )
    path = path.resolve()  # people keep such files elsewhere, with a link here
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        new.unlink()  # of a process that died, and had this one's id
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(_document(contexts), indent=2) + "\n")
        new.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            new.unlink()
        raise


def _parsed(document: Any) -> Contexts:
    """ValueError and its like: anything else."""
    by_name = {
        str(name): Context(
            _text(context["url"]), _maybe(context, "token"), _maybe(context, "caFile")
        )
        for name, context in document["contexts"].items()
    }
    current = _maybe(document, "current")
    if current is not None and current not in by_name:
        raise ValueError(f'"{current}" is none of the contexts')
    return Contexts(current, by_name)


def _maybe(document: Any, name: str) -> str | None:
    return None if document.get(name) is None else _text(document[name])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _document(contexts: Contexts) -> dict[str, object]:
    return {
        "current": contexts.current,
        "contexts": {
            name: {"url": each.url, "token": each.token, "caFile": each.ca_file}
            for name, each in contexts.by_name.items()
        },
    }
