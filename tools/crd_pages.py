"""docs/crds.md: a row each field, from the schemas that the API server has."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrace_operator.plan.names import GROUP_VERSION
from tools.crd_kinds import Kind
from tools.structural import structural

_BOUNDS = re.compile(r"not a (?:size|duration) (from) ([^;]*);")  # as in "from 1Gi on"
_NO_TEXT = '""'
_HEAD = (
    "# Resources\n\n"
    "Made from [`spec.py`](../operator/tailrace_operator/api/spec.py) and"
    " [`crd_kinds.py`](../tools/crd_kinds.py), as are the CRDs in"
    f" [`crds/`](../crds). Both kinds are of `{GROUP_VERSION}` and belong to a namespace;"
    " `kubectl get tailrace` shows all of it.\n"
    "The API server refuses a bad resource in words that name the field and what it can be."
    " Durations and sizes have a unit, as in `7d` and `10Gi`, where the HTTP API says `retentionMs`"
    " and `retentionBytes`; the brokers' own defaults are in [settings.md](settings.md).\n"
    'The annotation `tailrace.dev/paused: "true"` on either kind makes the operator leave all as it'
    " is.\n"
)


def crds_page(kinds: Sequence[Kind]) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_kind(kind) for kind in kinds)])


def _kind(kind: Kind) -> str:
    columns = ", ".join(f"`{column.name.upper()}`" for column in kind.columns)
    scale = " It has a `scale` subresource." if kind.scale else ""
    return (
        f"## {kind.kind}\n"
        f"{_sentence(kind.spec)} Short name `{kind.short}`. "
        f"Columns of `kubectl get`: {columns}.{scale}\n\n"
        f"{_table('spec', kind.spec, ('field', 'type', 'default', 'what'))}\n"
        f"### Status of a {kind.kind}\n"
        f"{_sentence(kind.status)}\n\n"
        f"{_table('status', kind.status, ('field', 'type', 'what'))}"
    )


def _sentence(model: type) -> str:
    return (model.__doc__ or "").splitlines()[0]


def _table(root: str, model: Any, head: tuple[str, ...]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for path, schema, is_required in _fields(root, structural(model)):
        default = "required" if is_required else _default(schema)
        what = " ".join([schema["description"], *_bounds(schema)])
        cells = {"field": f"`{path}`", "type": _type(schema), "default": default, "what": what}
        lines.append(f"| {' | '.join(cells[name] for name in head)} |")
    return "\n".join(lines) + "\n"


def _fields(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Those below `path`, each before what is in it."""
    for name, property_ in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        yield below, property_, name in schema.get("required", ())
        yield from _fields(below, property_)
        yield from _fields(f"{below}[]", property_.get("items", {}))


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{each or _NO_TEXT}`" for each in schema["enum"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return "map"
    return str(schema["type"])


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return "" if default in (None, {}) else f"`{json.dumps(default)}`".replace('"', "")


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    """What else the API server checks, in its words."""
    if "minimum" in schema and "maximum" in schema:
        yield f"{schema['minimum']} … {schema['maximum']}."
    for rule in schema.get("x-kubernetes-validations", ()):
        if match_ := _BOUNDS.match(rule.get("message", "")):
            yield f"{match_[1].capitalize()} {match_[2]}."
