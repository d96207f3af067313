"""Count and average the JSON events of a topic by a field of theirs.

    python -m tailrace.spark.jobs.aggregate --url http://127.0.0.1:9250 --topic flights \\
        --group-by .origin --count --avg .delayMinutes --top 10

The same file runs by `spark-submit`, which sets master, memory and all else of Spark's. An event
without the field counts under null; one that is no number there is left out of the average.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.errors import TailraceError
from tailrace.sync import Client

PATH_PATTERN = r"(\.[^.'`\[\]]+)+"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and print its groups; 1 without broker or topic, 2 when called wrongly."""
    called = _parser().parse_args(arguments)
    if not called.count and not called.avg:
        print("error: nothing to compute: give --count, or --avg with a field", file=sys.stderr)
        return 2
    try:
        with Client(called.url) as client:  # before Spark starts, which takes seconds
            client.offsets([called.topic])
    except TailraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not by spark-submit, which is told by its user
        # Spark's workers are else the python3 of PATH, which need not have this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName(f"aggregate {called.topic}").getOrCreate()
    try:
        events = (
            spark.read.format("tailrace")
            .option("bootstrap.servers", called.url)
            .option("subscribe", called.topic)
            .load()
        )
        groups = aggregate(
            events, group_by=called.group_by, count=called.count, averages=called.avg
        )
        _print_groups(groups.limit(called.top), called.output)
    finally:
        spark.stop()
    return 0


def aggregate(
    events: DataFrame, *, group_by: str, count: bool, averages: Sequence[str]
) -> DataFrame:
    """One row a value of `group_by`, largest first: that value, count, avg_<field> of each average.

    `events` has a column `value` of JSON; fields are paths like `.origin` or `.from.airport`.
    """
    measures = [F.count("*").alias("count")] if count else []
    measures += [
        F.avg(_field(path).try_cast("double")).alias(f"avg_{_name(path)}") for path in averages
    ]
    groups = events.groupBy(_field(group_by).alias(_name(group_by))).agg(*measures)
    # The value last, so that equal measures do not change places from run to run.
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aggregate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    url = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")
    parser.add_argument("--url", default=url, help="any broker; default $TAILRACE_URL")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group-by", required=True, type=_path, metavar="PATH")
    parser.add_argument("--count", action="store_true", help="events of each group")
    parser.add_argument("--avg", action="append", default=[], type=_path, metavar="PATH")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="groups to print")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
