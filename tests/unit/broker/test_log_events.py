"""House rules of the broker's log lines, over its source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

BROKER = Path(__file__).parents[3] / "broker" / "tailrace_broker"
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
NAME = re.compile(r"[a-z]+\.[a-z]+")
# A fifth of a microsecond; a line that nobody reads costs fifty times that.
GUARD = "self._is_debug"


def is_log_call(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="_log"), attr=level):
            assert level in LEVELS, ast.unparse(call)
            return True
    return False


def log_calls(source: str) -> Iterator[tuple[ast.Call, list[str]]]:
    """Each call that logs, with the conditions of the ifs around it."""

    def visit(node: ast.AST, conditions: list[str]) -> Iterator[tuple[ast.Call, list[str]]]:
        if isinstance(node, ast.Call) and is_log_call(node):
            yield node, conditions
        inner = [*conditions, ast.unparse(node.test)] if isinstance(node, ast.If) else conditions
        then = node.body if isinstance(node, ast.If) else []
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner if child in then else conditions)

    return visit(ast.parse(source), [])


@cache
def calls() -> list[tuple[str, ast.Call, list[str]]]:
    """Where each is, and what it is; no constant: all workers import this, and few need it."""
    return [
        (f"{path.relative_to(BROKER)}:{call.lineno}", call, conditions)
        for path in sorted(BROKER.rglob("*.py"))
        for text in [path.read_text()]
        if "_log." in text  # most files log nothing
        for call, conditions in log_calls(text)
    ]


def level_of(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def test_there_are_lines_to_check() -> None:
    assert len(calls()) >= 10
    assert {"debug", "info", "warning", "error"} <= {level_of(call) for _, call, _ in calls()}


def test_an_event_has_a_constant_name_and_its_details_are_fields() -> None:
    for place, call, _ in calls():
        (event,) = call.args

        assert isinstance(event, ast.Constant), place
        assert NAME.fullmatch(str(event.value)), place
        assert all(keyword.arg for keyword in call.keywords), place


def test_a_line_for_debugging_is_not_built_when_nobody_asked_for_it() -> None:
    assert [
        place
        for place, call, conditions in calls()
        if level_of(call) == "debug" and GUARD not in conditions
    ] == []


def test_only_edges_log() -> None:
    """Machines, plans and codecs decide; who runs them says so."""
    shells = {"app", "forwarding", "groups", "net", "node", "storage", "topics"}
    assert {place.split("/")[0] for place, _, _ in calls()} <= shells
