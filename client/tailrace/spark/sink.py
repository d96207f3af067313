"""Writes the rows of a batch as records: what `df.write.format("tailrace")` runs.

A task produces its rows in their order, over one connection, to any broker; the key decides the
partition. What a task has written stays written: a task that Spark runs again, and a job that is
run again, write their records once more.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tailrace.errors import ProblemError
from tailrace.spark.connection import PatientClient
from tailrace.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has stored."""

    record_count: int


class TailraceWriter(DataSourceArrowWriter):
    """Holds nothing but options, so that it pickles; there is nothing to commit or to abort."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Store all rows of a task; on return they are as durable as their topics promise."""
        from tailrace.arrow.records import group_by_topic

        record_count = 0
        with closing(PatientClient(self._options.urls)) as client:
            for batch in iterator:
                topic = self._options.topic
                groups = [(topic, batch)] if topic is not None else group_by_topic(batch)
                for name, rows in groups:
                    _store(client, name, rows)
                record_count += batch.num_rows
        return Written(record_count)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The records are stored already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was stored stays."""


def _store(client: PatientClient, topic: str, rows: "pa.RecordBatch") -> None:
    """In order, in requests that the broker takes: it may be set to small ones."""
    from tailrace.arrow.records import encode_batch, split_for_requests

    for piece in split_for_requests(rows):
        try:
            _produce(client, topic, encode_batch(piece))
        except ProblemError as error:
            is_too_large = error.type == "body-too-large" and not error.write_attempted
            if not is_too_large or piece.num_rows == 1:
                raise
            half = piece.num_rows // 2
            _store(client, topic, piece.slice(0, half))
            _store(client, topic, piece.slice(half))


def _produce(client: PatientClient, topic: str, body: bytes) -> None:
    client.ask(lambda connected: connected.produce_encoded(topic, body))
