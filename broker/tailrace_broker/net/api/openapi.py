"""`/v1/openapi.json`, made from the table of routes, and `/docs`, a page that shows it.

Source: OpenAPI 3.1.1. The page asks for nothing outside of the broker.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec

from tailrace_broker.model import errors
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.net.api.status import VERSION
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.problems import PROBLEM_CONTENT_TYPE, PROBLEMS
from tailrace_broker.net.http.router import AnswerForm, BodyForm, Call, Parameters, Response, Route

# What every request can meet, and what those with parameters or a body can meet too.
_ALWAYS: tuple[type[TailraceError], ...] = (
    errors.InvalidRequestError,
    errors.RequestTimeoutError,
    errors.HeaderTooLargeError,
    errors.ForeignHostError,
    errors.TooManyConnectionsError,
)
_WITH_BODY: tuple[type[TailraceError], ...] = (
    errors.BodyTooLargeError,
    errors.UnsupportedMediaTypeError,
    errors.ExpectationFailedError,
    errors.ProduceMemoryFullError,
)
_REFERENCE = "#/components/schemas/{name}"
_ADMIN_SCHEME = "ringSecret"
_SECURITY_SCHEMES = {
    _ADMIN_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "The ring's secret (`TAILRACE_RING_SECRET`); not needed when it has none.",
    }
}
# Nothing but the page itself, and the description from where it came.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
)


class ProblemDocument(msgspec.Struct, rename="camel"):
    """RFC 9457, with Tailrace's members; a type adds its own."""

    type: str
    title: str
    status: int
    detail: str
    retriable: bool
    write_attempted: bool


async def page(_: Broker, __: Call) -> Response:
    """Return the page."""
    html = files("tailrace_broker.net.api").joinpath("docs.html").read_bytes()
    headers = {"content-security-policy": _PAGE_POLICY, "x-content-type-options": "nosniff"}
    return Response((html,), "text/html; charset=utf-8", 200, headers)


async def redirect(_: Broker, __: Call) -> Response:
    """Redirect to the page."""
    return Response(content_type="", status=302, headers={"location": "/docs"})


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    structs = _structs_of(routes)
    _, components = msgspec.json.schema_components(structs, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Tailrace",
            "version": VERSION,
            "summary": "An event log over plain HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY_SCHEMES},
    }


def _structs_of(routes: Sequence[Route]) -> list[Any]:
    """Every type that the document refers to."""
    answers = [
        schema
        for route in routes
        for form in route.answers
        for schema in form.content.values()
        if schema is not None
    ]
    bodies = [form.schema for route in routes for form in route.bodies if form.schema]
    return [ProblemDocument, *bodies, *answers]


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": [*_parameters(route, route.parameters), *_parameters(route, route.headers)],
        "responses": {
            **{str(form.status): _answer(form) for form in route.answers},
            **_problems(route),
        },
    }
    if route.bodies:
        content = {form.content_type: _body(form) for form in route.bodies}
        operation["requestBody"] = {
            "required": not route.is_body_optional,
            "content": content,
        }
    if route.is_admin:
        operation["security"] = [{_ADMIN_SCHEME: []}, {}]
    return operation


def _operation_id(route: Route) -> str:
    """Return a name such as "getV1TopicsTopic"."""
    words = re.split("[/.-]", route.path.replace("{", "").replace("}", ""))
    return route.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _parameters(route: Route, struct: type[Parameters]) -> list[dict[str, Any]]:
    """Path parameters first, as in the struct."""
    schema = msgspec.json.schema_components([struct])[1][struct.__name__]
    described = []
    for name, known in schema["properties"].items():
        is_in_path = f"{{{name}}}" in route.path
        otherwise = "header" if struct is route.headers else "query"
        value = {key: each for key, each in known.items() if key != "default" or each is not None}
        if "anyOf" in value:  # with null, which a parameter is by being left out
            value = {**value.pop("anyOf")[0], **value}
        text = value.pop("description", None)
        described.append(
            {
                "name": name,
                "in": "path" if is_in_path else otherwise,
                "required": name in schema["required"],
                **({"description": text} if text else {}),
                "schema": value,
            }
        )
    return described


def _body(form: BodyForm) -> dict[str, Any]:
    return {"schema": _schema(form.schema) if form.schema else {"description": form.description}}


def _answer(form: AnswerForm) -> dict[str, Any]:
    content = {
        content_type: {"schema": {} if schema is None else _schema(schema)}
        for content_type, schema in form.content.items()
    }
    return {"description": form.description, **({"content": content} if content else {})}


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return schema


def _problems(route: Route) -> dict[str, Any]:
    """Return by status the problem types that the route may answer."""
    kinds = {
        *_ALWAYS,
        *route.problems,
        *(_WITH_BODY if route.bodies else ()),
        *((errors.InvalidParameterError,) if route.parameters.__struct_fields__ else ()),
        *((errors.SecretRequiredError,) if route.is_admin else ()),
        *((errors.ForeignOriginError,) if route.method != "GET" else ()),
    }
    by_status: dict[str, list[str]] = {}
    for problem in PROBLEMS.items():
        kind, known = problem
        if kind in kinds:
            by_status.setdefault(str(known.status), []).append(f"`{known.slug}`: {known.when}")
    content = {PROBLEM_CONTENT_TYPE: {"schema": _schema(ProblemDocument)}}
    return {
        status: {"description": "\n\n".join(texts), "content": content}
        for status, texts in sorted(by_status.items())
    }
