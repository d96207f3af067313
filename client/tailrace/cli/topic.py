"""`tailrace topic create|list|describe|alter|delete`."""

import argparse
from typing import TYPE_CHECKING

from tailrace.cli.options import OUTPUT, TOPIC, URL, connect, counted, size_text
from tailrace.cli.parser import UsageError, Verb, parameter, whole_number

if TYPE_CHECKING:
    from tailrace.cli.output import Column
    from tailrace.values import TopicInfo

PARTITIONS_PER_RANGE_MAX = 256  # docs/protocol.md, "Topics"


def create(
    *,
    topic: str,
    partitions_per_range: int | None,
    json_check: bool | None,
    output: str,
    url: str | None,
) -> None:
    """Create a topic; done already when it exists with the same settings."""
    import time

    start_s = time.perf_counter()
    with connect(url) as client:
        created = client.create_topic(
            topic, partitions_per_range=partitions_per_range, json_check=json_check
        )
    duration_ms = round((time.perf_counter() - start_s) * 1000)
    partitions = counted(created.partitions, "partition")
    _show_topic(created, output, f"{partitions}, ready in {duration_ms} ms")


def list_topics(*, output: str, url: str | None) -> None:
    """List all topics."""
    from tailrace.cli.output import as_table, member, show
    from tailrace.values import to_document

    columns = [
        member("TOPIC", "name"),
        member("PARTITIONS", "partitions"),
        member("COPIES", "copies"),
        member("DURABILITY", "durability"),
        member("JSON CHECK", "jsonCheck"),
    ]
    with connect(url) as client:
        documents = [to_document(topic) for topic in client.topics()]
    show(output, documents, as_table(documents, columns))


def describe(*, topic: str, output: str, url: str | None) -> None:
    """Show a topic's partitions: where they are, what they hold."""
    from tailrace.cli.output import as_table, show
    from tailrace.values import to_document

    with connect(url) as client:
        details = client.topic(topic)
    partitions = [to_document(each) for each in details.partition_details]
    document = {**to_document(details.topic), "partitionDetails": partitions}
    show(output, document, as_table(partitions, _partition_columns()))


def alter(*, topic: str, json_check: bool | None, output: str, url: str | None) -> None:
    """Change a topic's settings; they hold for the records that come after."""
    if json_check is None:
        raise UsageError("nothing to change: give --json-check or --no-json-check")
    with connect(url) as client:
        altered = client.alter_topic(topic, json_check=json_check)
    values = "JSON values only" if altered.json_check else "any values"
    _show_topic(altered, output, values)


def delete(*, topic: str, output: str, url: str | None) -> None:
    """Delete a topic with all its records."""
    from tailrace.cli.output import show

    with connect(url) as client:
        client.delete_topic(topic)
    show(output, {"name": topic, "deleted": True}, f"✓ {topic}: deleted")


def _show_topic(topic: "TopicInfo", output: str, told: str) -> None:
    from tailrace.cli.output import show
    from tailrace.values import to_document

    show(output, to_document(topic), f"✓ {topic.name}: {told}")


def _partition_columns() -> "list[Column]":
    from tailrace.cli.output import NONE, Column, member

    return [
        member("PARTITION", "partition"),
        member("RANGE", "range"),
        Column("SLICE", lambda each: f"{each['slice']}/{each['slices']}"),
        member("LEADER", "leader"),
        member("ISR", "isr"),
        member("START", "logStart"),
        member("COMMITTED", "highWatermark"),
        member("END", "logEnd"),
        Column(
            "SIZE",
            lambda each: NONE if each["sizeBytes"] is None else size_text(each["sizeBytes"]),
        ),
        member("PARENTS", "parents"),
        member("STATE", "state"),
    ]


_JSON_CHECK = parameter(
    "--json-check",
    action=argparse.BooleanOptionalAction,
    help="refuse values that are not JSON",
)
CREATE = Verb(
    create,
    (
        TOPIC,
        parameter(
            "--partitions-per-range",
            metavar="N",
            type=whole_number(1, PARTITIONS_PER_RANGE_MAX),
            help="partitions in each range of the ring; the broker's default is 4",
        ),
        _JSON_CHECK,
        OUTPUT,
        URL,
    ),
    ("tailrace topic create orders --partitions-per-range 8",),
)
LIST = Verb(list_topics, (OUTPUT, URL), ("tailrace topic list -o json",))
DESCRIBE = Verb(describe, (TOPIC, OUTPUT, URL), ("tailrace topic describe orders",))
ALTER = Verb(
    alter, (TOPIC, _JSON_CHECK, OUTPUT, URL), ("tailrace topic alter orders --no-json-check",)
)
DELETE = Verb(delete, (TOPIC, OUTPUT, URL), ("tailrace topic delete orders",))
