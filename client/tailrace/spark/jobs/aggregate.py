"""Count and average the JSON events of a topic by a field of theirs.

    python -m tailrace.spark.jobs.aggregate --url http://127.0.0.1:9250 --topic flights \\
        --group-by .origin --count --avg .delayMinutes --top 10

With --streaming by micro-batches, up to what the topic holds when it starts.
The same file runs by `spark-submit`, which sets master, memory and all else of Spark's. An event
without the field counts under null; one that is no number there is left out of the average.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.spark.jobs.session import job_parser, read_topic, run_job

PATH_PATTERN = r"(\.[^.'`\[\]]+)+"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and print its groups; 1 when it fails, 2 when called wrongly."""
    called = parse_arguments(arguments)
    return run_job(called, f"aggregate {called.topic}", run)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Exits with 2 when they do not fit."""
    parser = job_parser("aggregate", __doc__)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group-by", required=True, type=_path, metavar="PATH")
    parser.add_argument("--count", action="store_true", help="events of each group")
    parser.add_argument("--avg", action="append", default=[], type=_path, metavar="PATH")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="groups to print")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--streaming", action="store_true", help="read by micro-batches")
    called = parser.parse_args(arguments)
    if not called.count and not called.avg:
        parser.error("nothing to compute: give --count, or --avg with a field")
    return called


def run(spark: SparkSession, called: argparse.Namespace) -> int:
    """Print the largest groups."""
    measures = {"group_by": called.group_by, "count": called.count, "averages": called.avg}
    if called.streaming:
        events = read_topic(spark.readStream, called, startingOffsets="earliest")
        query = start_stream(aggregate(events, **measures))
        query.awaitTermination()
        groups = _largest_first(spark.table(query.name))
    else:
        groups = aggregate(read_topic(spark.read, called), **measures)
    _print_groups(groups.limit(called.top), called.output)
    return 0


def aggregate(
    events: DataFrame, *, group_by: str, count: bool, averages: Sequence[str]
) -> DataFrame:
    """One row a value of `group_by`, largest first: that value, count, avg_<field> of each average.

    `events`, also those of a stream, have a column `value` of JSON; fields are paths like `.origin`
    or `.from.airport`.
    """
    measures = [F.count("*").alias("count")] if count else []
    measures += [
        F.avg(_field(path).try_cast("double")).alias(f"avg_{_name(path)}") for path in averages
    ]
    return _largest_first(events.groupBy(_field(group_by).alias(_name(group_by))).agg(*measures))


def start_stream(groups: DataFrame) -> StreamingQuery:
    """Group what a stream holds now; when the query ends, the table of its name has the groups."""
    writer = groups.writeStream.format("memory").queryName("groups").outputMode("complete")
    return writer.trigger(availableNow=True).start()


def _largest_first(groups: DataFrame) -> DataFrame:
    """By the first measure, then the next; the value last, so that equal ones keep their order."""
    return groups.orderBy(*[F.desc(name) for name in groups.columns[1:]], groups.columns[0])


def _field(path: str) -> Column:
    """The field's text, null when the event has none."""
    json_path = "$" + "".join(f"['{name}']" for name in path.split(".")[1:])
    return F.get_json_object(F.col("value").cast("string"), json_path)


def _name(path: str) -> str:
    """The column's name: parentheses and dots are trouble in Parquet and in SQL."""
    return path[1:].replace(".", "_")


def _print_groups(groups: DataFrame, output: str) -> None:
    """A table, or a JSON array of objects, to stdout."""
    rows = [row.asDict() for row in groups.collect()]
    if output == "json":
        print(json.dumps(rows))
        return
    lines = [groups.columns, *[[_cell(value) for value in row.values()] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        print("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    """For the table: thousands apart, two decimals of an average."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.2f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _path(text: str) -> str:
    if not re.fullmatch(PATH_PATTERN, text):
        raise argparse.ArgumentTypeError(f'"{text}" is no path like .origin or .from.airport')
    return text


if __name__ == "__main__":
    sys.exit(main())
