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

from tailrace.errors import OffsetOutOfRangeError, ProblemError, TailraceError
from tailrace.spark.connection import PatientClient
from tailrace.spark.offsets import OffsetRange
from tailrace.spark.options import ReadOptions
from tailrace.spark.stream_offsets import OLDER_LISTING_S, OLDER_LISTINGS_MAX
from tailrace.sync import Client
from tailrace.values import Fetched

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
# Deleted, or removed by retention; or new to the broker that was asked.
_NOT_FOUND = ("topic-not-found", "partition-not-found")


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
        except ProblemError as error:
            behind = _behind_loss(error, asked, offsets.end)
            if behind is None:
                raise
            report_loss(options, f"{offsets.topic}/{offsets.partition}: {error}")
            position = behind
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
    """Ask again where a partition is not known: brokers hear of a step one after the other."""
    topic, partition, bytes_max = offsets.topic, offsets.partition, options.fetch_bytes_max

    def read(connected: Client) -> Fetched:
        return connected.read_batches(topic, partition, position, max_bytes=bytes_max)

    for _ in range(OLDER_LISTINGS_MAX):
        try:
            return client.ask(read)
        except ProblemError as error:
            if error.type not in _NOT_FOUND:
                raise
        client.turn(OLDER_LISTING_S)
    return client.ask(read)


def _behind_loss(error: ProblemError, asked: int, end: int) -> int | None:
    """Where reading goes on behind what is gone for good; None: it is not."""
    if isinstance(error, OffsetOutOfRangeError):
        # Retention took the start while the job ran; without a later start, all is gone.
        return error.log_start if error.log_start > asked else end
    if error.type in _NOT_FOUND:
        return end
    following = error.members.get("nextOffset")
    is_accepted = error.type == "corrupt-partition" and error.members.get("accepted") is True
    return following if is_accepted and isinstance(following, int) and following > asked else None


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
