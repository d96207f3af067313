"""The documents that are made from code: docs/api.md and docs/settings.md.

`pytest tests/unit/test_docs.py --rewrite` writes them.
"""

import ast
import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tailrace_broker.app.settings import Settings
from tailrace_broker.net.http.problems import PROBLEM_CONTENT_TYPE

MEBIBYTE = 1024 * 1024
INT64_MAX = 2**63 - 1
API_HEAD = (
    "# HTTP API\n\n"
    "Made from the table of routes that checks each request: `/v1/openapi.json` of a broker, which"
    " shows the same as a page at `/docs`. What it means is in [protocol.md](protocol.md).\n"
)
SETTINGS_HEAD = (
    "# Settings of a broker\n\n"
    "Made from [`app/settings.py`](../broker/tailrace_broker/app/settings.py). From the"
    " environment, read once at the start; an empty variable counts as none. A wrong value, or a"
    " `TAILRACE_…` that is no setting, ends the start with one line that names it and what is"
    " allowed. Ignored are the variables of clients (`TAILRACE_URL`, `TAILRACE_TOKEN`,"
    " `TAILRACE_CA_FILE`) and of the operator, and those that Kubernetes sets for a Service named"
    " `tailrace…`, as `TAILRACE_PORT=tcp://10.96.0.7:9250`.\n"
    "Sizes are set in bytes; the table says large ones in MiB. `tailrace dev --data DIR --port BASE"
    "` sets `TAILRACE_DATA_DIR`, `TAILRACE_HOST` (127.0.0.1) and `TAILRACE_PORT`, and logs"
    " from `warning` on; the others pass through.\n"
)


# What together bounds a broker's memory: memory/pool.py.
MEMORY_QUOTAS = ("produce_memory_bytes", "read_memory_bytes", "io_buffer_bytes", "cache_bytes")


def settings_page() -> str:
    """docs/settings.md: a row each field, in the order of the class."""
    texts = field_docstrings(Settings)
    rows = [
        (f"`TAILRACE_{name.upper()}`", default_text(name, field), bounds_text(name, field), text)
        for (name, field), text in zip(Settings.model_fields.items(), texts, strict=True)
    ]
    quota_bytes = sum(Settings.model_fields[name].default for name in MEMORY_QUOTAS)
    quotas = ", ".join(f"`TAILRACE_{name.upper()}`" for name in MEMORY_QUOTAS)
    memory = (
        f"Memory: {quotas} are fixed quotas, by default {value_text('memory_bytes', quota_bytes)} "
        "together; [what else a broker needs](operations.md#memory).\n"
    )
    rows_text = table(("variable", "default", "from … to", "what"), rows)
    return f"{SETTINGS_HEAD}{memory}\n{rows_text}"


def field_docstrings(kind: type) -> list[str]:
    """The string behind each annotated name of a class body, as one line."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    texts = []
    for field, behind in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(behind, ast.Expr), ast.unparse(field)
            texts.append(" ".join(ast.literal_eval(behind.value).split()))
    return texts


def default_text(name: str, field: FieldInfo) -> str:
    """As in the environment, but sizes as people say them."""
    if field.is_required():
        return "required"
    return "none" if field.default is None else value_text(name, field.default)


def bounds_text(name: str, field: FieldInfo) -> str:
    """ "1 … 64", "over 0", "debug, info"."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    bounds = {
        kind: value_text(name, getattr(each, kind))
        for each in field.metadata
        for kind in ("gt", "ge", "le")
        if hasattr(each, kind)
    }
    if "gt" in bounds:
        return f"over {bounds['gt']}"
    return " … ".join([bounds["ge"], bounds.get("le", "")]).rstrip() if bounds else ""


def value_text(name: str, value: object) -> str:
    """A setting's value; bytes in MiB where these are whole."""
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes") and isinstance(value, int) and value and value % MEBIBYTE == 0:
        return f"{value // MEBIBYTE} MiB"
    return str(value)


def api_page(document: Mapping[str, Any]) -> str:
    """docs/api.md of an OpenAPI document: routes, then types, then problems."""
    routes = [
        (f"{method.upper()} {path}", operation)
        for path, by_method in document["paths"].items()
        for method, operation in by_method.items()
    ]
    met_always = reduce(set.intersection, (set(problems_of(each)) for _, each in routes))
    sections = [route_section(name, operation, met_always) for name, operation in routes]
    schemas = document["components"]["schemas"].items()
    types = [type_section(name, schema) for name, schema in schemas]
    overview = table(("route", "what"), [(link(name), each["summary"]) for name, each in routes])
    return (
        "\n".join(
            [
                API_HEAD,
                overview,
                *sections,
                "## Types\n",
                *types,
                problem_section(dict(routes), met_always),
            ]
        ).rstrip("\n")
        + "\n"
    )


def route_section(name: str, operation: Mapping[str, Any], met_always: set[str]) -> str:
    """One route: its parameters, bodies, answers and problems."""
    parameters = [
        (
            f"`{parameter['name']}`",
            f"{parameter['in']}, required" if parameter["required"] else parameter["in"],
            type_text(parameter["schema"]) + default_words(parameter["schema"]),
            parameter.get("description", ""),
        )
        for parameter in operation["parameters"]
    ]
    bodies = [
        (f"`{kind}`", body_text(each["schema"]))
        for kind, each in operation.get("requestBody", {}).get("content", {}).items()
    ]
    answers = [
        (status, response["description"], answer_text(response))
        for status, response in operation["responses"].items()
        if not is_problem(response)
    ]
    own = [f"`{slug}`" for slug in problems_of(operation) if slug not in met_always]
    parts = [
        f"## {name}\n\n{operation['summary']}\n",
        table(("parameter", "in", "type", "what"), parameters),
        table(("body", "what"), bodies),
        table(("answer", "what", "as"), answers),
        f"[Problems](#problems): {', '.join(own)}\n" if own else "",
    ]
    return "\n".join(part for part in parts if part)


def type_section(name: str, schema: Mapping[str, Any]) -> str:
    """One type: its members."""
    required = schema["required"]
    rows = [
        (
            f"`{member}`",
            type_text(known) + ("" if member in required else f", optional{default_words(known)}"),
            known.get("description", ""),
        )
        for member, known in schema["properties"].items()
    ]
    return f"### {name}\n\n{schema['description']}\n\n{table(('member', 'type', 'what'), rows)}"


def problem_section(routes: Mapping[str, Mapping[str, Any]], met_always: set[str]) -> str:
    """All problems by status; with those that every route may answer marked."""
    known = {
        slug: (status, when)
        for operation in routes.values()
        for slug, (status, when) in problems_of(operation).items()
    }
    rows = [
        (f"`{slug}`", status, "every route" if slug in met_always else "", when)
        for slug, (status, when) in sorted(known.items(), key=lambda item: (item[1][0], item[0]))
    ]
    return (
        "## Problems\n\nEach is a [ProblemDocument](#problemdocument), `application/problem+json`;"
        " some add members of their own ([protocol.md](protocol.md)).\n\n"
        + table(("type", "status", "met by", "when"), rows)
    )


def problems_of(operation: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Slug -> status and when, of what an operation may answer."""
    return {
        slug.strip("`"): (status, when)
        for status, answer in operation["responses"].items()
        if is_problem(answer)
        for slug, _, when in (text.partition(": ") for text in answer["description"].split("\n\n"))
    }


def is_problem(answer: Mapping[str, Any]) -> bool:
    """Whether an answer of a route is an error."""
    return PROBLEM_CONTENT_TYPE in answer.get("content", {})


def body_text(schema: Mapping[str, Any]) -> str:
    """A link to its type, or what the route says of it."""
    return type_text(schema) if "$ref" in schema else str(schema["description"])


def answer_text(answer: Mapping[str, Any]) -> str:
    """The content types, each with its own type where it has one."""
    content = {
        kind: type_text(each["schema"]) if each["schema"] else ""
        for kind, each in answer.get("content", {}).items()
    }
    return "; ".join(f"`{kind}`{f': {text}' if text else ''}" for kind, text in content.items())


def type_text(schema: Mapping[str, Any]) -> str:
    """ "integer, 1 to 256", "string or null", a link to a type."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_text(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {type_text(schema.get('items', {}))}"
    kind = schema.get("format") or schema.get("type") or "any JSON"
    if "minimum" not in schema:
        return str(kind)
    if schema["maximum"] == INT64_MAX:
        return f"{kind}, {schema['minimum']} or more"
    return f"{kind}, {schema['minimum']} to {schema['maximum']}"


def default_words(schema: Mapping[str, Any]) -> str:
    """The default, unless it is as good as none."""
    value = schema.get("default")
    return "" if value in (None, []) else f", default {str(value).lower()}"


def link(heading: str) -> str:
    """To a heading of the same page, as GitHub names its anchor."""
    kept = "".join(each for each in heading.lower() if each.isalnum() or each in " -_")
    return f"[`{heading}`](#{kept.replace(' ', '-')})"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; nothing without rows."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if not lines:
        return ""
    head = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "".join(f"{line}\n" for line in [*head, *lines])
