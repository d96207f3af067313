"""`tailrace topic create|list|describe|alter|delete`."""

import argparse
from typing import TYPE_CHECKING, Any, Unpack

from tailrace.cli.lib.options import (
    DRY_RUN,
    OUTPUT,
    TOPIC,
    URL,
    connect,
    counted,
    partitions_text,
    size_text,
)
from tailrace.cli.lib.parser import Parameter, UsageError, Verb, parameter, whole_number
from tailrace.cli.lib.quantities import duration, size
from tailrace.cli.verbs import trash
from tailrace.errors import ProblemError
from tailrace.settings.quantities import duration_quantity, size_quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.cli.lib.output import Column
    from tailrace.cli.lib.topic_plans import Plan
    from tailrace.protocol.requests import TopicSettings
    from tailrace.sync import Client
    from tailrace.values import TopicInfo

PARTITIONS_PER_RANGE_MAX = 256  # this and other bounds: docs/protocol.md, "Topics"
_MEBIBYTE = 1024 * 1024


def create(
    *,
    topic: str,
    dry_run: bool,
    output: str,
    url: str | None,
    **settings: "Unpack[TopicSettings]",
) -> None:
    """Create a topic; done already when it exists with the settings that are given."""
    import time

    if dry_run:
        from tailrace.cli.lib.topic_plans import plan_create

        _show_plan(output, url, lambda client: plan_create(client, topic, settings))
        return
    start_s = time.perf_counter()
    with connect(url) as client:
        created = _created(client, topic, settings)
    duration_ms = round((time.perf_counter() - start_s) * 1000)
    partitions = counted(created.open_partitions, "partition")
    _show_topic(created, output, f"{partitions}, ready in {duration_ms} ms")


def _created(client: "Client", topic: str, settings: "TopicSettings") -> "TopicInfo":
    """Create it. TailraceError: it has other settings, in the words of the options."""
    try:
        return client.create_topic(topic, **settings)
    except ProblemError as error:
        if error.type == "topic-exists":
            from tailrace.cli.lib.topic_plans import check_same

            check_same(client.topic(topic).topic, settings)
        raise


def list_topics(*, deleted: bool, output: str, url: str | None) -> None:
    """List all topics."""
    if deleted:
        trash.list_deleted(output=output, url=url)
        return
    from tailrace.cli.lib.output import Column, as_table, member, show
    from tailrace.values import to_document

    columns = [
        member("TOPIC", "name"),
        Column("PARTITIONS", partitions_text),
        member("COPIES", "copies"),
        Column("RETENTION", lambda topic: duration_quantity(topic["retentionMs"])),
        member("DURABILITY", "durability"),
        member("COMPRESSION", "compression"),
        member("JSON CHECK", "jsonCheck"),
    ]
    with connect(url) as client:
        documents = [to_document(topic) for topic in client.topics()]
    show(output, documents, as_table(documents, columns))


def describe(*, topic: str, output: str, url: str | None) -> None:
    """Show a topic's settings, and its partitions: where they are, what they hold."""
    from tailrace.cli.lib.output import as_table, show
    from tailrace.values import to_document

    with connect(url) as client:
        details = client.topic(topic)
    partitions = [to_document(partition_detail) for partition_detail in details.partition_details]
    document = {**to_document(details.topic), "partitionDetails": partitions}
    table = as_table(partitions, _partition_columns())
    show(output, document, f"TOPIC {topic}   {_settings_text(details.topic)}\n{table}")


def alter(
    *,
    topic: str,
    dry_run: bool,
    output: str,
    url: str | None,
    **settings: "Unpack[TopicSettings]",
) -> None:
    """Change a topic's settings, in force at once; records that are stored stay as they are.

    With another number of partitions it waits until all ranges have it, which they come to anyway.
    """
    if not settings:
        options = [name for setting in _SETTINGS for name in setting.option_names]
        raise UsageError(f"nothing to change: give at least one of {', '.join(options)}")
    if dry_run:
        from tailrace.cli.lib.topic_plans import plan_alter

        _show_plan(output, url, lambda client: plan_alter(client, topic, settings))
        return
    with connect(url) as client:
        altered = client.alter_topic(topic, **settings)
        if altered.ranges_to_slice:
            from tailrace.cli.lib.reslicing import wait_resliced

            altered = wait_resliced(client, altered)
    _show_topic(altered, output, _settings_text(altered))


def delete(*, topic: str, dry_run: bool, output: str, url: str | None) -> None:
    """Delete a topic with all its records."""
    from tailrace.cli.lib.output import show

    if dry_run:
        from tailrace.cli.lib.topic_plans import plan_delete

        _show_plan(output, url, lambda client: plan_delete(client, topic))
        return
    with connect(url) as client:
        client.delete_topic(topic)
    show(output, {"name": topic, "deleted": True}, f"✓ {topic}: deleted")


def _show_plan(output: str, url: str | None, plan: "Callable[[Client], Plan]") -> None:
    from tailrace.cli.lib.output import show

    with connect(url) as client:
        document, text = plan(client)
    show(output, document, text)


def _show_topic(topic: "TopicInfo", output: str, text: str) -> None:
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    show(output, to_document(topic), f"✓ {topic.name}: {text}")


def _settings_text(topic: "TopicInfo") -> str:
    """What holds for it, named as the options that alter it."""
    flush = {
        "flush": duration_quantity(topic.flush_ms),
        "flush-size": size_quantity(topic.flush_bytes),
    }
    values = {
        "retention": duration_quantity(topic.retention_ms),
        "retention-size": size_quantity(topic.retention_bytes),
        "durability": topic.durability,
        **(flush if topic.durability == "written" else {}),
        "linger": duration_quantity(topic.linger_ms),
        "linger-size": size_quantity(topic.linger_bytes),
        "compression": topic.compression,
        "json-check": "yes" if topic.json_check else "no",
        "min-in-sync-replicas": str(topic.min_in_sync_replicas),
        "partitions-per-range": str(topic.partitions_per_range),
    }
    return "   ".join(f"{name} {value}" for name, value in values.items())


def _partition_columns() -> "list[Column]":
    from tailrace.cli.lib.output import NONE, Column, member

    return [
        member("PARTITION", "partition"),
        member("RANGE", "range"),
        Column("SLICE", lambda each: f"{each['slice']}/{each['slices']}"),
        Column("LEADER", _leader_text),
        member("ISR", "isr"),
        member("START", "logStart"),
        member("COMMITTED", "highWatermark"),
        member("END", "logEnd"),
        Column(
            "SIZE",
            lambda each: NONE if each["sizeBytes"] is None else size_text(each["sizeBytes"]),
        ),
        member("PARENTS", "parents"),
        Column("STATE", _state_text),
    ]


def _state_text(partition: dict[str, Any]) -> str:
    """With the first offsets that cannot be read, and how many more ranges of them there are."""
    text = str(partition["state"])
    for what, is_accepted in (("quarantined", False), ("lost", True)):
        found = [each for each in partition["quarantined"] if each["accepted"] == is_accepted]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            text += f", {what} {found[0]['firstOffset']}-{found[0]['lastOffset']}{more}"
    return text


def _leader_text(partition: dict[str, Any]) -> str:
    """The words for a broker that does not answer are those of `tailrace status`."""
    from tailrace.cli.lib.output import NONE

    if partition["leader"] is None:
        return NONE
    word = {"unreachable": " away", "waiting": " down", "leaderless": " unsure"}
    return f"{partition['leader']}{word.get(partition['state'], '')}"


def _setting(option: str, field: str, help: str, **settings: Any) -> Parameter:
    """One that the verb gets only when it was typed: `none` is a value too."""
    return parameter(option, dest=field, help=help, default=argparse.SUPPRESS, **settings)


_SETTINGS = (
    _setting(
        "--retention",
        "retention_ms",
        "how long records stay at least, like 7d (a new topic's), or none: for ever",
        metavar="TIME",
        type=duration(60_000, or_none=True),
    ),
    _setting(
        "--retention-size",
        "retention_bytes",
        "what each partition keeps at least, like 10Gi, or none (a new topic's): all",
        metavar="SIZE",
        type=size(_MEBIBYTE, or_none=True),
    ),
    _setting(
        "--durability",
        "durability",
        "when a produce is answered: fsync (a new topic's): its records are on disk; written: the "
        "operating system has them",
        metavar="WHEN",
        choices=("fsync", "written"),
    ),
    _setting(
        "--flush",
        "flush_ms",
        "with written: after how long at most records are flushed; a new topic's is 1s",
        metavar="TIME",
        type=duration(1, 3_600_000),
    ),
    _setting(
        "--flush-size",
        "flush_bytes",
        "with written: how much at most is not flushed; a new topic's is 16Mi",
        metavar="SIZE",
        type=size(4096),
    ),
    _setting(
        "--linger",
        "linger_ms",
        "how long single events wait for others to share a batch; a new topic's is 0",
        metavar="TIME",
        type=duration(0, 60_000),
    ),
    _setting(
        "--linger-size",
        "linger_bytes",
        "they wait no longer once they have this size; a new topic's is 0: no bound",
        metavar="SIZE",
        type=size(0, 16 * _MEBIBYTE),
    ),
    _setting(
        "--compression",
        "compression",
        "of batches that it makes smaller: lz4 (a new topic's), zstd or none",
        metavar="CODEC",
        choices=("lz4", "zstd", "none"),
    ),
    _setting(
        "--json-check",
        "json_check",
        "refuse values that are not JSON, as a new topic does",
        action=argparse.BooleanOptionalAction,
    ),
    _setting(
        "--min-in-sync-replicas",
        "min_in_sync_replicas",
        "replicas that must be in sync, or produces are refused: 2 (a new topic's) or 3",
        metavar="N",
        type=whole_number(2, 3),
    ),
    _setting(
        "--partitions-per-range",
        "partitions_per_range",
        "partitions in each range of the ring; a new topic's is 4. The ranges follow one by one",
        metavar="N",
        type=whole_number(1, PARTITIONS_PER_RANGE_MAX),
    ),
)
CREATE = Verb(
    create,
    (
        TOPIC,
        *_SETTINGS,
        DRY_RUN,
        OUTPUT,
        URL,
    ),
    (
        "tailrace topic create orders --partitions-per-range 8",
        "tailrace topic create clicks --retention 36h --retention-size 10Gi --durability written",
    ),
)
LIST = Verb(
    list_topics,
    (
        parameter(
            "--deleted",
            action="store_true",
            help="those that can be restored, and until when",
        ),
        OUTPUT,
        URL,
    ),
    ("tailrace topic list -o json", "tailrace topic list --deleted"),
)
DESCRIBE = Verb(describe, (TOPIC, OUTPUT, URL), ("tailrace topic describe orders",))
ALTER = Verb(
    alter,
    (TOPIC, *_SETTINGS, DRY_RUN, OUTPUT, URL),
    (
        "tailrace topic alter orders --no-json-check",
        "tailrace topic alter orders --retention none --compression zstd --linger 5ms",
        "tailrace topic alter orders --partitions-per-range 8 --dry-run",
    ),
)
DELETE = Verb(
    delete,
    (TOPIC, DRY_RUN, OUTPUT, URL),
    ("tailrace topic delete orders --dry-run", "tailrace topic delete orders"),
)
