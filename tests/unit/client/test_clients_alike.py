"""The blocking classes and those for asyncio cannot drift apart."""

import ast
import inspect

import pytest

from tailrace import (
    aio,
    aio_consumer,
    aio_producer,
    aio_reading,
    consumer,
    producer,
    reading,
    sync,
)

CLIENTS = (sync.Client, aio.Client)
CONSUMERS = (consumer.Consumer, aio_consumer.Consumer)
PRODUCERS = (producer.Producer, aio_producer.Producer)
READINGS = (reading.Reading, aio_reading.Reading)
# What does not wait in either client: nothing is asked.
PLAIN = {"twin", "read", "timeout_s"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def methods_of(kind: type) -> dict[str, Function]:
    """As they are written: the public ones, and how one is made."""
    [defined] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(defined, ast.ClassDef)
    return {
        each.name: each
        for each in defined.body
        if isinstance(each, Function) and (each.name == "__init__" or each.name[0] != "_")
    }


def signatures(methods: dict[str, Function]) -> dict[str, str]:
    """Names, kinds, defaults and types; a type in quotes is the same type."""
    written = {
        name: f"({ast.unparse(method.args)}) -> {method.returns and ast.unparse(method.returns)}"
        for name, method in methods.items()
    }
    return {
        name: text.replace("'", "").replace("AsyncIterator", "Iterator")
        for name, text in written.items()
    }


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [CLIENTS, CONSUMERS, PRODUCERS],
    ids=["client", "consumer", "producer"],
)
def test_both_have_the_same_methods_with_the_same_parameters_and_results(
    blocking: type, awaited: type
) -> None:
    assert signatures(methods_of(blocking)) == signatures(methods_of(awaited))


def test_every_method_that_asks_is_awaited_and_says_the_same() -> None:
    ours, theirs = map(methods_of, CLIENTS)
    asking = ours.keys() - PLAIN - {"__init__"}
    awaited = {n for n, method in theirs.items() if isinstance(method, ast.AsyncFunctionDef)}

    assert awaited == asking
    assert {name: ast.get_docstring(ours[name]) for name in asking - {"close"}} == {
        name: ast.get_docstring(theirs[name]) for name in asking - {"close"}
    }


def test_consumers_say_the_same() -> None:
    ours, theirs = map(methods_of, CONSUMERS)

    assert {name: ast.get_docstring(method) for name, method in ours.items()} == {
        name: ast.get_docstring(method) for name, method in theirs.items()
    }


def test_readings_have_the_same_methods() -> None:
    ours, theirs = map(methods_of, READINGS)

    assert ours.keys() == theirs.keys()
