"""The OpenAPI document against the table of routes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tailrace_broker.net.api.openapi import openapi
from tailrace_broker.net.api.routes import ROUTES
from tailrace_broker.net.http.problems import PROBLEM_CONTENT_TYPE, PROBLEMS
from tailrace_broker.net.http.router import Route

METHODS = {"get", "put", "post", "delete", "patch"}
# What OpenAPI 3.1.1 knows here; all else would be a mistake.
OPERATION_MEMBERS = {
    "summary",
    "operationId",
    "parameters",
    "requestBody",
    "responses",
    "security",
}
PARAMETER_MEMBERS = {"name", "in", "required", "description", "schema"}
RESPONSE_MEMBERS = {"description", "content"}
each_route = pytest.mark.parametrize(
    "route", ROUTES, ids=[f"{route.method} {route.path}" for route in ROUTES]
)


@pytest.fixture(scope="module")
def page() -> Any:
    """The document as a client reads it."""
    return json.loads(msgspec.json.encode(openapi(ROUTES)))


def operation_of(page: Any, route: Route) -> Any:
    return page["paths"][route.path][route.method.lower()]


def every(node: Any, key: str) -> Iterator[Any]:
    """The values of this key, wherever they are."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from every(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from every(value, key)


def test_it_is_openapi_3_1(page: Any) -> None:
    assert re.fullmatch(r"3\.1\.\d+", page["openapi"])
    assert page.keys() == {"openapi", "info", "paths", "components"}
    assert {"title", "version"} <= page["info"].keys()
    for path, methods in page["paths"].items():
        assert path.startswith("/")
        assert methods.keys() <= METHODS


def test_it_has_every_route_and_no_other(page: Any) -> None:
    described = {(m.upper(), path) for path, methods in page["paths"].items() for m in methods}

    assert described == {(route.method, route.path) for route in ROUTES}
    assert len(described) == len(ROUTES)


def test_operations_have_names_of_their_own(page: Any) -> None:
    names = list(every(page["paths"], "operationId"))

    assert len(names) == len(set(names)) == len(ROUTES)
    assert all(re.fullmatch(r"[A-Za-z0-9]+", name) for name in names)


def test_what_needs_the_secret_says_so_and_nothing_else_does(page: Any) -> None:
    [scheme] = page["components"]["securitySchemes"]
    secured = {
        (method.upper(), path)
        for path, methods in page["paths"].items()
        for method, operation in methods.items()
        if operation.get("security") == [{scheme: []}, {}]
    }

    assert page["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    assert secured == {(route.method, route.path) for route in ROUTES if route.is_admin}
    assert {path for _, path in secured} == {
        "/v1/ring/found",
        "/v1/ring/steps",
        "/v1/ring/brokers/{broker}/retire",
        "/v1/ring/ranges/{range}/accept-loss",
        "/v1/ring/metadata/recover",
        "/v1/topics/{topic}/partitions/{partition}/accept-loss",
    }


def test_every_reference_leads_to_a_schema_and_every_schema_is_referred_to(page: Any) -> None:
    schemas = page["components"]["schemas"]
    references = {
        each.removeprefix("#/components/schemas/")
        for each in every(page, "$ref")
        if isinstance(each, str)
    }

    assert references == schemas.keys()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in schemas)


@each_route
def test_an_operation_has_the_parameters_of_its_route(page: Any, route: Route) -> None:
    operation = operation_of(page, route)
    assert operation.keys() <= OPERATION_MEMBERS
    described = {parameter["name"]: parameter for parameter in operation["parameters"]}
    in_headers = {field.encode_name: field for field in msgspec.structs.fields(route.headers)}
    in_target = {field.encode_name: field for field in msgspec.structs.fields(route.parameters)}
    known = in_target | in_headers

    assert described.keys() == known.keys()
    assert len(operation["parameters"]) == len(known)
    in_path = set(re.findall(r"\{(\w+)\}", route.path))
    for name, each in described.items():
        assert each.keys() <= PARAMETER_MEMBERS
        assert (each["in"] == "header") == (name in in_headers)
        assert (each["in"] == "path") == (name in in_path)
        assert each["required"] == known[name].required
        assert each["required"] or name not in in_path
        assert each["schema"].get("type") or each["schema"].get("enum")
        if not known[name].required and known[name].default is not None:
            default = known[name].default
            assert each["schema"]["default"] == (list(default) if default == () else default)
        else:
            assert "default" not in each["schema"]


@each_route
def test_an_operation_has_the_bodies_and_answers_of_its_route(page: Any, route: Route) -> None:
    operation = operation_of(page, route)
    bodies = operation.get("requestBody", {"required": True, "content": {}})
    assert bodies["content"].keys() == {form.content_type for form in route.bodies}
    assert bodies["required"] == (not route.is_body_optional)
    for form in route.answers:
        answer = operation["responses"][str(form.status)]
        assert answer.keys() <= RESPONSE_MEMBERS
        assert answer["description"] == form.description
        assert answer.get("content", {}).keys() == set(form.content)
        assert form.status < 400


@each_route
def test_an_operation_has_the_problems_of_its_route(page: Any, route: Route) -> None:
    responses = operation_of(page, route)["responses"]
    for kind in route.problems:
        known = PROBLEMS[kind]
        answer = responses[str(known.status)]
        assert f"`{known.slug}`: {known.when}" in answer["description"].split("\n\n")
        assert answer["content"].keys() == {PROBLEM_CONTENT_TYPE}
    for status, answer in responses.items():
        reported = re.findall(r"^`([a-z-]+)`: ", answer["description"], re.MULTILINE)
        if int(status) >= 400:
            assert reported
            known_slugs = {
                problem.slug for problem in PROBLEMS.values() if str(problem.status) == status
            }
            assert set(reported) <= known_slugs
