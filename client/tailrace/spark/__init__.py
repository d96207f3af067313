"""Spark's way in and out: `format("tailrace")`, and jobs to run or to copy.

`source`, `sink`, `listener` and `jobs` import pyspark; of the rest `connection`, `group_offsets`
and `task` talk to brokers, and all others are pure. May import `tailrace`'s `arrow`,
`arrow_records`, `errors`, `requests` and `sync`.
"""

from typing import Any

__all__ = ["watch"]


def watch(query: Any) -> Any:
    """Print a line for each micro-batch of a StreamingQuery, as in `tailrace.spark.progress`.

    Returns the StreamingQueryListener, for `spark.streams.removeListener`.
    """
    from tailrace.spark.listener import add_printer

    return add_printer(query)
