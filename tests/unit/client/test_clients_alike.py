"""The blocking classes and those for asyncio cannot drift apart."""

import ast
import asyncio
import inspect
from types import FunctionType
from typing import assert_type

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
from tailrace.calls import consuming
from tailrace.calls import groups as calls_of_groups
from tailrace.calls import records as calls_of_records
from tailrace.calls import ring as calls_of_ring
from tailrace.calls import topics as calls_of_topics
from tailrace.calls.exchange import blocking
from tailrace.produced import Produced
from tailrace.values import Fetched, TopicInfo

CLIENTS = (sync.Client, aio.Client)
CONSUMERS = (consumer.Consumer, aio_consumer.Consumer)
PRODUCERS = (producer.Producer, aio_producer.Producer)
READINGS = (reading.Reading, aio_reading.Reading)

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


def calls() -> dict[str, FunctionType]:
    """All coroutines of `tailrace.calls` that clients list."""
    modules = (calls_of_topics, calls_of_records, calls_of_groups, calls_of_ring)
    return {
        name: call
        for module in modules
        for name, call in vars(module).items()
        if isinstance(call, FunctionType) and call.__module__ == module.__name__
    }


LISTED = [(*CLIENTS, call) for call in calls().values()] + [
    (*CONSUMERS, call) for call in (consuming.close, consuming.poll, consuming.commit)
]


@pytest.mark.parametrize(
    ("ours", "theirs", "call"), LISTED, ids=[call.__name__ for _, _, call in LISTED]
)
def test_both_list_every_call_and_the_blocking_one_waits_for_it(
    ours: type, theirs: type, call: FunctionType
) -> None:
    run = vars(ours)[call.__name__]

    assert vars(theirs)[call.__name__] is call
    assert inspect.iscoroutinefunction(call)
    assert not inspect.iscoroutinefunction(run)
    assert (run.__name__, run.__doc__, inspect.signature(run)) == (
        call.__name__,
        call.__doc__,
        inspect.signature(call),
    )


def test_a_blocking_call_that_suspends_is_a_bug() -> None:
    async def suspend() -> None:
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="suspend suspended over a blocking transport"):
        blocking(suspend)()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [CLIENTS, CONSUMERS, PRODUCERS],
    ids=["client", "consumer", "producer"],
)
def test_both_have_the_same_methods_with_the_same_parameters_and_results(
    ours: type, theirs: type
) -> None:
    assert signatures(methods_of(ours)) == signatures(methods_of(theirs))


def test_type_checkers_infer_the_parameters_and_results_of_both_clients() -> None:
    """Checked by mypy, which reads this file."""

    def blocks(client: sync.Client) -> None:
        assert_type(client.topics(), list[TopicInfo])
        assert_type(client.create_topic("t", partitions_per_range=4), TopicInfo)
        assert_type(client.produce("t", b"1", key="k", producer_id="p", sequence=1), Produced)
        assert_type(client.read_lines("t", 0, "latest", max_records=1, wait_ms=9), Fetched)
        client.create_topic("t", partition_count=4)  # type: ignore[call-arg]
        client.produce("t", "1")  # type: ignore[arg-type]

    async def awaits(client: aio.Client) -> None:
        assert_type(await client.topics(), list[TopicInfo])
        assert_type(await client.produce("t", b"1", key="k"), Produced)
        await client.produce("t", "1")  # type: ignore[arg-type]

    assert callable(blocks)
    assert callable(awaits)


def test_consumers_say_the_same() -> None:
    ours, theirs = map(methods_of, CONSUMERS)

    assert {name: ast.get_docstring(method) for name, method in ours.items()} == {
        name: ast.get_docstring(method) for name, method in theirs.items()
    }


def test_readings_have_the_same_methods() -> None:
    ours, theirs = map(methods_of, READINGS)

    assert ours.keys() == theirs.keys()
