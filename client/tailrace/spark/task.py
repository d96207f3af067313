"""What a task does on an executor: read a range of offsets as Arrow record batches.

Runs in Spark's Python workers and imports no pyspark; pyarrow only where it is needed, since
Spark imports the data source in every session that looks for one.
"""

import functools
import gc
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from tailrace.errors import OffsetOutOfRangeError, TailraceError
from tailrace.spark.connection import PatientClient
from tailrace.spark.offsets import OffsetRange
from tailrace.spark.options import ReadOptions
from tailrace.values import Fetched

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class DataLossError(TailraceError):
    """Records that were asked for are not there; option failOnDataLoss=false reads the rest."""

    remedy = "To read what is left, set failOnDataLoss to false"


class MissingTopicError(DataLossError):
    """A topic that was asked for does not exist, most likely a wrong name."""

    remedy = "Correct the name, or create the topic; those that exist: tailrace topic list"


def report_loss(options: ReadOptions, loss: str, kind: type[DataLossError] = DataLossError) -> None:
    """Raise, or warn in the log of the process that runs this."""
    sentence = loss if loss.endswith("?") else f"{loss}."
    if options.fail_on_data_loss:
        raise kind(f"{sentence} {kind.remedy}")
    _log.warning("%s failOnDataLoss is false: reading what is left", sentence)


def read_range(offsets: OffsetRange, options: ReadOptions) -> "Iterator[pa.RecordBatch]":
    """All records of the range, in record batches of `coalesceRows` rows."""
    from tailrace.arrow.batches import coalesce

    with closing(PatientClient.of(options)) as client:
        for batch in coalesce(_read(client, offsets, options), rows=options.coalesce_rows):
            _freeze_heap()
            yield batch


def _read(
    client: PatientClient, offsets: OffsetRange, options: ReadOptions
) -> "Iterator[pa.RecordBatch]":
    """One record batch a batch; where a broker has gone away, on from what was read."""
    from tailrace.arrow.batches import decode_batches

    position = offsets.start
    while position < offsets.end:
        asked = position
        try:
            fetched = _fetch(client, offsets, asked, options)
        except OffsetOutOfRangeError as error:
            report_loss(options, f"{offsets.topic}/{offsets.partition}: {error}")
            # Retention took the start while the job ran; without a later start, all is gone.
            position = error.log_start if error.log_start > asked else offsets.end
            continue
        for batch in decode_batches(
            fetched.body,
            topic=offsets.topic,
            start=asked,
            end=offsets.end,
            include_headers=options.include_headers,
        ):
            position += batch.num_rows
            yield batch
        if position == asked:
            loss = f"{offsets.topic}/{offsets.partition} ends at {asked}, not {offsets.end}"
            report_loss(options, loss)
            return


def _fetch(
    client: PatientClient, offsets: OffsetRange, position: int, options: ReadOptions
) -> Fetched:
    topic, partition, bytes_max = offsets.topic, offsets.partition, options.fetch_bytes_max
    return client.ask(
        lambda connected: connected.read_batches(topic, partition, position, max_bytes=bytes_max)
    )


@functools.cache
def _freeze_heap() -> None:
    """Once a process: take all that is imported out of the collector's sight.

    pyspark/daemon.py runs `gc.collect()` after every task, and a worker imports thousands of
    objects: about 90 % of its CPU was the collector walking imported modules. A task took 183 to
    215 ms before, 41 to 43 ms after. Called behind the first decoded batch, since pyarrow imports
    lazily up to there.
    """
    gc.collect()
    gc.freeze()
