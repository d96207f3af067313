"""A stream over steps of its ring: every record once, those of a key in their order."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.producer import Producer
from tailrace.sync import Client
from tests.support.ring.local_ring import founded_ring
from tests.support.ring.ring_steps import reslice_to, step_to
from tests.support.spark.spark import SPARK_MARKS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK_MARKS

FIRST, LAST = 3, 5
COUNTS = (4, 8, 2)  # of partitions in each range
KEYS = [b"k%d" % number for number in range(24)]
READ_S_MAX = 90.0

Row = tuple[bytes, int, int, int]  # key, number, partition, offset


class Events:
    """Numbers for each key, one after the other, each stored once by a producer."""

    def __init__(self, url: str) -> None:
        self.count = 0  # of each key
        self._url = url
        self._is_over = threading.Event()

    def run(self) -> None:
        with Client(self._url) as client, Producer(client) as producer:
            while not self._is_over.wait(0.02):
                for key in KEYS:
                    producer.send("t", b"%d" % self.count, key=key)
                producer.flush()  # NotStoredError
                self.count += 1

    @contextmanager
    def coming(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(self.run)
            try:
                yield
            finally:
                self._is_over.set()
        running.result()


def rows_of(frame: "DataFrame") -> list[Row]:
    found = frame.select("key", "value", "partition", "offset").collect()
    return [(bytes(row.key), int(row.value), row.partition, row.offset) for row in found]


@pytest.mark.parametrize("grows", [True, False], ids=["grow", "re-slice"])
def test_a_stream_goes_on_over_steps_of_the_ring(
    spark: "SparkSession", tmp_path: Path, grows: bool
) -> None:
    batches: list[list[Row]] = []
    count = LAST if grows else FIRST
    with founded_ring(tmp_path, count=count, founders=FIRST, copies=3) as ring:
        urls = [broker.url for broker in ring.brokers]
        with Client(urls[0]) as client:
            client.create_topic("t", partitions_per_range=2)
        events = Events(urls[1])
        options = {
            "bootstrap.servers": ",".join(urls[:FIRST]),
            "subscribe": "t",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "300",
        }
        stream = spark.readStream.format("tailrace").options(**options).load()
        writer = stream.writeStream.foreachBatch(lambda frame, _: batches.append(rows_of(frame)))
        checkpoint = tmp_path / "checkpoint"
        with events.coming():
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            for number in range(FIRST + 1, LAST + 1) if grows else COUNTS:
                seen = len(batches) + 2
                ring.until(lambda seen=seen: len(batches) >= seen, READ_S_MAX)  # type: ignore[misc]
                if grows:
                    step_to(ring, number)
                else:
                    reslice_to(ring, number)
            seen = len(batches) + 2
            ring.until(lambda: len(batches) >= seen, READ_S_MAX)
        query.processAllAvailable()
        query.stop()
        with Client(urls[ring.ring(0)["brokers"] - 1]) as client:
            listing = client.offsets(["t"])

    rows = [row for batch in batches for row in batch]
    assert len(rows) == len({row[2:] for row in rows}) == len(KEYS) * events.count
    for key in KEYS:
        read = [sorted(row[1] for row in batch if row[0] == key) for batch in batches]
        assert list(chain.from_iterable(read)) == list(range(events.count)), key
    for batch in batches:
        partitions = {(row[0], row[2]) for row in batch}
        assert len(partitions) == len({key for key, _ in partitions}), "a child beside its parent"
    check_offsets(checkpoint, listing)


def check_offsets(checkpoint: Path, listing: list[Any]) -> None:
    """A child is in the end of a batch only when its start has all parents at their ends."""
    rows = {row.partition: row for row in listing}
    documents = [
        json.loads(path.read_text().splitlines()[-1])["t"]
        for path in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
    ]
    joined = 0
    before: dict[str, int] = {}
    for document in documents:
        for partition in document.keys() - before.keys() if before else ():
            for parent in rows[int(partition)].parents:
                joined += 1
                assert before[str(parent)] == rows[parent].high_watermark, document
        before = document
    assert joined, "no child was read"
