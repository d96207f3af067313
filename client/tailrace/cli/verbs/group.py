"""`tailrace group list|describe|reset|delete`: consumer groups, and how far they have read."""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tailrace.cli.lib.options import DRY_RUN, OUTPUT, URL, connect, counted, group_name
from tailrace.cli.lib.parser import UsageError, Verb, parameter, shown, text
from tailrace.cli.lib.times import TIME_EXAMPLE, TIME_HELP, age_s, is_integer_time, time_us
from tailrace.settings.quantities import DIGITS_MAX

if TYPE_CHECKING:
    from tailrace.cli.lib.output import Column
    from tailrace.protocol.group_values import GroupDetails, GroupReset

Offsets = Mapping[str, Mapping[int, int]]  # topic, partition, offset
TOPICS_SHOWN_MAX = 3  # in a table, by their names
_OFFSETS_EXAMPLE = "flights:0=12,1=30"
_ENTRY = re.compile(rf"([0-9]{{1,{DIGITS_MAX}}})=([0-9]{{1,{DIGITS_MAX}}})")
# States of a group whose members the broker knows; in others its readers publish how far they are.
_STATES_WITH_MEMBERS = ("active", "idle")


def list_groups(*, output: str, url: str | None) -> None:
    """List all groups: who reads what, and how far behind.

    LAG counts the records that are not read yet, and OLDEST UNREAD is the age of the oldest.
    LOST counts those that were gone before the group read them: retention had removed them, or
    somebody has accepted their loss.
    """
    from tailrace.cli.lib.output import NONE, Column, as_table, member, show
    from tailrace.values import to_document

    columns = [
        member("GROUP", "group"),
        Column(
            "MEMBERS",
            lambda each: str(each["members"]) if each["state"] in _STATES_WITH_MEMBERS else NONE,
        ),
        _topics(),
        _number("LAG", "lag"),
        _number("LOST", "lost"),
        Column("STATE", lambda each: each["state"] + (", damaged" if each["lag"] is None else "")),
        _oldest_unread(),
    ]
    with connect(url) as client:
        documents = [to_document(group) for group in client.groups()]
    show(output, documents, as_table(documents, columns))


def describe(*, group: str, output: str, url: str | None) -> None:
    """Show a group's consumers, and where it is in each partition.

    It goes on at POSITION; after a restart of the broker at STORED, which is not much older.
    LOST counts the records behind POSITION that retention removed: it goes on at START.
    """
    from tailrace.cli.lib.output import as_table, show
    from tailrace.values import to_document

    with connect(url) as client:
        details = client.group(group)
    consumers = [to_document(consumer) for consumer in details.consumers]
    partitions = [to_document(partition) for partition in details.partitions]
    document = {
        **to_document(details.info),
        "assignmentEpoch": details.assignment_epoch,
        "consumers": consumers,
        "partitions": partitions,
    }
    tables = [_headline(details), as_table(partitions, _partition_columns())]
    if consumers:
        tables.insert(1, as_table(consumers, _consumer_columns()))
    show(output, document, "\n".join(tables))


def reset(
    *,
    group: str,
    to: Literal["earliest", "latest"] | int | None,
    offsets: Sequence[Offsets] | None,
    topics: Sequence[str] | None,
    dry_run: bool,
    output: str,
    url: str | None,
) -> None:
    """Move a group to where it shall read on; it must have no consumers then."""
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    if (to is None) == (offsets is None):
        raise UsageError("where to? Give one of --to and --to-offsets")
    if offsets is not None and topics is not None:
        raise UsageError("--topic goes with --to; --to-offsets names its topics itself")
    with connect(url) as client:
        moved = client.reset_group(
            group,
            to=to if isinstance(to, str) else None,
            timestamp_us=to if isinstance(to, int) else None,
            offsets=None if offsets is None else _merged(offsets),
            topics=topics,
            dry_run=dry_run,
        )
    show(output, to_document(moved), summary_of(moved))


def delete(*, group: str, dry_run: bool, output: str, url: str | None) -> None:
    """Forget a group and how far it has read; it must have no consumers then."""
    from tailrace.cli.lib.output import show

    with connect(url) as client:
        if dry_run:
            details = client.group(group)
        else:
            client.delete_group(group)
    if not dry_run:
        show(output, {"group": group, "deleted": True}, f"✓ {group}: deleted")
        return
    is_idle = not details.consumers
    count = len(details.partitions)
    document = {"group": group, "deleted": False, "dryRun": True, "isIdle": is_idle}
    text = f"would forget its position in {counted(count, 'partition')}; {_idle_text(is_idle)}"
    show(output, {**document, "partitions": count}, text)


# --- output ---------------------------------------------------------------------------------------


def summary_of(moved: "GroupReset") -> str:
    """ "would move 12 partitions back by 188,204 events; group is idle: yes"."""
    count = sum(partition.from_offset != partition.to_offset for partition in moved.partitions)
    ways = {"back": moved.moved_back, "forward": moved.moved_forward}
    by = " and ".join(f"{way} by {counted(n, 'event')}" for way, n in ways.items() if n)
    if moved.dry_run:
        would = f"would move {counted(count, 'partition')} {by}" if by else "would move nothing"
        return f"{would}; {_idle_text(moved.is_idle)}"
    if not by:
        return f"✓ {moved.group}: is there already"
    return f"✓ {moved.group}: moved {counted(count, 'partition')} {by}"


def _idle_text(is_idle: bool) -> str:
    return "group is idle: yes" if is_idle else "group is idle: no, stop its consumers first"


def _headline(details: "GroupDetails") -> str:
    info = details.info
    words = [f"GROUP {info.group}", info.state, f"assignment epoch {details.assignment_epoch}"]
    lag = "unknown" if info.lag is None else f"{info.lag:,}"
    lost = f"lost {info.lost:,}"
    return "   ".join([*words, f"lag {lag}", *([lost] if info.lost else [])])


def _consumer_columns() -> "list[Column]":
    from tailrace.cli.lib.output import Column, member

    return [
        member("CONSUMER", "consumerId"),
        _topics(),
        Column("PARTITIONS", lambda each: str(len(each["partitions"]))),
        Column("SEEN", lambda each: f"{each['idleMs'] / 1000:.1f}s ago"),
        Column("SESSION", lambda each: f"{each['sessionMs'] / 1000:g}s"),
    ]


def _partition_columns() -> "list[Column]":
    from tailrace.cli.lib.output import member

    return [
        member("TOPIC", "topic"),
        member("PARTITION", "partition"),
        member("POSITION", "position"),
        member("STORED", "committed"),
        member("START", "logStart"),
        member("END", "highWatermark"),
        _number("LAG", "lag"),
        _number("LOST", "lost"),
        member("STATE", "state"),
        _oldest_unread(),
        member("CONSUMER", "consumer"),
    ]


def _topics() -> "Column":
    """Names while they are few, and how many there are."""
    from tailrace.cli.lib.output import Column, cell_text

    def cell(document: Any) -> str:
        topics = document["topics"]
        is_short = len(topics) <= TOPICS_SHOWN_MAX
        return cell_text(topics) if is_short else counted(len(topics), "topic")

    return Column("TOPICS", cell)


def _number(title: str, name: str) -> "Column":
    from tailrace.cli.lib.output import NONE, Column

    return Column(title, lambda each: NONE if each[name] is None else f"{each[name]:,}")


def _oldest_unread() -> "Column":
    from tailrace.cli.lib.output import NONE, Column, short_duration

    def cell(document: Any) -> str:
        time = document["oldestUnread"]
        return NONE if time is None else short_duration(age_s(time))

    return Column("OLDEST UNREAD", cell)


# --- types of values ------------------------------------------------------------------------------


def _reset_target(word: str) -> str | int:
    """A time becomes microseconds."""
    if word in ("earliest", "latest"):
        return word
    try:
        return time_us(word)
    except argparse.ArgumentTypeError:
        if is_integer_time(word):
            raise
        raise argparse.ArgumentTypeError(
            f"{shown(word)} is not earliest, latest or a time like {TIME_EXAMPLE}; "
            "offsets go to --to-offsets"
        ) from None


def _offsets(word: str) -> Offsets:
    """Of "flights:0=12,1=30"."""
    topic, _, rest = text(word).partition(":")
    entries = [_ENTRY.fullmatch(entry) for entry in rest.split(",")]
    offset_by_partition = {int(entry[1]): int(entry[2]) for entry in entries if entry}
    if not topic or len(offset_by_partition) != len(entries):
        raise argparse.ArgumentTypeError(
            f"{shown(word)} is not a topic with an offset a partition, like {_OFFSETS_EXAMPLE}"
        )
    return {topic: offset_by_partition}


def _merged(every: Sequence[Offsets]) -> Offsets:
    """UsageError: a topic is there twice."""
    merged: dict[str, Mapping[int, int]] = {}
    for each in every:
        for topic, offsets in each.items():
            if topic in merged:
                raise UsageError(
                    f"--to-offsets: {shown(topic)} is given twice; put its partitions in one, "
                    f"like {_OFFSETS_EXAMPLE}"
                )
            merged[topic] = offsets
    return merged


_GROUP = parameter(
    "group", metavar="GROUP", type=group_name, help="the group's name", complete="group"
)
LIST = Verb(list_groups, (OUTPUT, URL), ("tailrace group list",))
DESCRIBE = Verb(describe, (_GROUP, OUTPUT, URL), ("tailrace group describe billing",))
RESET = Verb(
    reset,
    (
        _GROUP,
        parameter(
            "--to",
            metavar="WHERE",
            type=_reset_target,
            help=f"earliest, latest, or the first record from a time on, like {TIME_HELP}",
        ),
        parameter(
            "--to-offsets",
            dest="offsets",
            metavar="OFFSETS",
            action="append",
            type=_offsets,
            help=f"these partitions of a topic to these offsets, like {_OFFSETS_EXAMPLE}; "
            "can be repeated",
        ),
        parameter(
            "--topic",
            dest="topics",
            metavar="TOPIC",
            action="append",
            type=text,
            help="with --to: this topic only; can be repeated",
            complete="topic",
        ),
        DRY_RUN,
        OUTPUT,
        URL,
    ),
    (
        "tailrace group reset billing --to 2026-11-21T09:00Z --dry-run",
        "tailrace group reset billing --to earliest --topic orders",
        "tailrace group reset billing --to-offsets orders:0=12,1=30",
    ),
)
DELETE = Verb(
    delete,
    (_GROUP, DRY_RUN, OUTPUT, URL),
    ("tailrace group delete billing --dry-run", "tailrace group delete billing"),
)
