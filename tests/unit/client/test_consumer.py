"""What both consumers do before they ask a broker."""

import asyncio
import sys

import pytest

import tailrace
from tailrace import aio, aio_consumer, consumer
from tailrace.consumer import Consumer, new_consumer_id
from tailrace.extras import MissingPackageError
from tailrace.sync import Client

URL = "http://127.0.0.1:1"  # where nothing is asked


def test_a_new_consumer_has_a_name_of_its_own_that_a_broker_takes() -> None:
    names = {new_consumer_id() for _ in range(10)}

    assert len(names) == 10
    assert all(name.isprintable() and not {" ", "/"} & set(name) for name in names)
    assert max(map(len, names)) <= 249


@pytest.mark.parametrize(
    ("given", "name"), [({"consumer_id": "c1"}, "c1"), ({"consumer_id": None}, None), ({}, None)]
)
def test_a_consumer_has_the_name_that_it_is_given(
    given: dict[str, str | None], name: str | None
) -> None:
    consumer = Consumer(Client(URL), "g", "t", **given)  # type: ignore[arg-type]

    assert consumer.consumer_id == name or (name is None and len(consumer.consumer_id) > 8)


def test_arrow_batches_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    awaited = aio_consumer.Consumer(aio.Client(URL), "g", "t")

    for each in (Consumer(Client(URL), "g", "t"), awaited):
        with pytest.raises(MissingPackageError, match=r"pyarrow.*pip install -e .*\[arrow\]'$"):
            each.batches()


def test_a_consumers_records_are_there_beside_it() -> None:
    assert consumer.Record is aio_consumer.Record is tailrace.Record


def test_the_end_of_a_consumer_that_never_polled_asks_nothing() -> None:
    async def leave() -> None:
        async with aio_consumer.Consumer(aio.Client(URL), "g", "t"):
            pass

    with Consumer(Client(URL), "g", "t"):
        pass
    asyncio.run(leave())
