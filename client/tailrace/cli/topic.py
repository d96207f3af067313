"""`tailrace topic create|list`."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import DEFAULT_URL, TopicArgument, UrlOption, connect, counted

if TYPE_CHECKING:
    from tailrace.requests import TopicInfo

app = typer.Typer(help="Create and list topics.", rich_markup_mode=None)


class Output(Enum):
    """For people, or for programs."""

    TABLE = "table"
    JSON = "json"


@app.command("create")
def create(
    name: TopicArgument,
    partitions_per_range: Annotated[
        int | None,
        typer.Option(help="Partitions in each range of the ring; the broker's default is 4."),
    ] = None,
    json_check: Annotated[
        bool, typer.Option("--json-check/--no-json-check", help="Refuse values that are not JSON.")
    ] = True,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Create a topic; done already when it exists with the same settings.

    \b
    Example:
      tailrace topic create orders --partitions-per-range 8
    """
    import time

    start_s = time.perf_counter()
    with connect(url) as client:
        topic = client.create_topic(
            name, partitions_per_range=partitions_per_range, json_check=json_check
        )
    duration_ms = round((time.perf_counter() - start_s) * 1000)
    print(f"✓ {topic.name}: {counted(topic.partitions, 'partition')}, ready in {duration_ms} ms")


@app.command("list")
def list_topics(
    output: Annotated[Output, typer.Option("--output", "-o", help="Form.")] = Output.TABLE,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List all topics.

    \b
    Example:
      tailrace topic list -o json
    """
    with connect(url) as client:
        topics = client.topics()
    print(_as_json(topics) if output is Output.JSON else as_table(topics))


def as_table(topics: "list[TopicInfo]") -> str:
    """Aligned columns under a line of titles."""
    titles = ("TOPIC", "PARTITIONS", "COPIES", "DURABILITY", "JSON CHECK")
    rows = [
        (
            topic.name,
            str(topic.partitions),
            str(topic.copies),
            topic.durability,
            "yes" if topic.json_check else "no",
        )
        for topic in topics
    ]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (titles, *rows))


def _as_json(topics: "list[TopicInfo]") -> str:
    """As the broker's API names things."""
    import json

    documents = [
        {
            "name": topic.name,
            "id": topic.id,
            "partitionsPerRange": topic.partitions_per_range,
            "jsonCheck": topic.json_check,
            "durability": topic.durability,
            "partitions": topic.partitions,
            "copies": topic.copies,
        }
        for topic in topics
    ]
    return json.dumps(documents, indent=2)
