"""Watches streaming queries: a listener that prints a line for each micro-batch."""

import json

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.spark.progress import progress_line


class ProgressPrinter(StreamingQueryListener):
    """Prints how one query gets on, until it ends."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """It has started before it could be watched."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After each micro-batch of any query."""
        if str(event.progress.id) == self._query_id:
            print(progress_line(json.loads(event.progress.json)), flush=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Spark keeps listeners until the session ends."""


def add_printer(query: StreamingQuery) -> ProgressPrinter:
    """To the active session, whose `streams.removeListener` takes it off again."""
    printer = ProgressPrinter(str(query.id))
    SparkSession.active().streams.addListener(printer)
    return printer
