"""What `tailrace topic create|alter|delete|restore` would do, for their --dry-run.

Each returns a document and what people read. What the verb would be refused for is an error here.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tailrace.cli.lib.options import counted, size_text, with_sealed
from tailrace.cli.lib.parser import shown
from tailrace.cli.lib.reslicing import plan_reslice, reslice_text
from tailrace.errors import TailraceError, TopicNotFoundError
from tailrace.settings.quantities import duration_quantity, size_quantity
from tailrace.values import wire_name

if TYPE_CHECKING:
    from tailrace.sync import Client
    from tailrace.values import DeletedTopic, TopicInfo

Plan = tuple[dict[str, Any], str]

_TOPIC_NAME = re.compile(r"(?!\.\.?\Z|__)[A-Za-z0-9._-]{1,249}")  # docs/protocol.md, "Topics"
_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "retention_ms": duration_quantity,
    "retention_bytes": size_quantity,
    "flush_ms": duration_quantity,
    "flush_bytes": size_quantity,
    "linger_ms": duration_quantity,
    "linger_bytes": size_quantity,
    "json_check": lambda value: "yes" if value else "no",
}
# A quantity's unit is in its text, and not in its name.
_NAMES = {"_ms": "", "_bytes": "-size"}


def plan_create(client: "Client", name: str, settings: Mapping[str, Any]) -> Plan:
    """Settings that are not given are those of any new topic."""
    if not _TOPIC_NAME.fullmatch(name):
        raise TailraceError(
            f"{shown(name)} cannot be a topic's name: give 1 to 249 of A-Z a-z 0-9 . _ -, neither "
            ". nor .., and without __ at its start"
        )
    existing = _named(client, name)
    given = {wire_name(field): value for field, value in settings.items()}
    document = {"name": name, "dryRun": True, "exists": existing is not None, "settings": given}
    if existing is None:
        wanted = ", ".join(_text(field, value) for field, value in settings.items())
        return document, f"would create {name}{f': {wanted}' if wanted else ''}"
    check_same(existing, settings)
    return document, f"would create nothing: {name} exists with these settings"


def check_same(topic: "TopicInfo", wanted: Mapping[str, Any]) -> None:
    """TailraceError: it exists with other settings; the error names how to change them."""
    others = {field: value for field, value in wanted.items() if getattr(topic, field) != value}
    if others:
        current_text = ", ".join(_text(field, getattr(topic, field)) for field in others)
        options = " ".join(_option(field, value) for field, value in others.items())
        raise TailraceError(
            f"topic {shown(topic.name)} exists with {current_text}. Change it: tailrace topic "
            f"alter {topic.name} {options}; or choose another name"
        )


def plan_alter(client: "Client", name: str, settings: Mapping[str, Any]) -> Plan:
    """What is different from how it is. TopicNotFoundError."""
    details = client.topic(name)
    topic = details.topic
    changes = {
        field: (getattr(topic, field), value)
        for field, value in settings.items()
        if getattr(topic, field) != value
    }
    summary = ", ".join(
        f"{_text(field, old)} to {_value_text(field, new)}" for field, (old, new) in changes.items()
    )
    document: dict[str, Any] = {
        "name": name,
        "dryRun": True,
        "changes": {
            wire_name(field): {"from": old, "to": new} for field, (old, new) in changes.items()
        },
    }
    if "partitions_per_range" in changes:
        document["reslice"] = plan_reslice(client, details, settings["partitions_per_range"])
        summary += f"; {reslice_text(name, document['reslice'])}"
    return (
        document,
        f"would change {summary}" if summary else f"would change nothing: {name} is so already",
    )


def plan_delete(client: "Client", name: str) -> Plan:
    """How much there is, and who reads it. TopicNotFoundError."""
    partitions = client.topic(name).partition_details
    record_count = sum(
        (partition.high_watermark or 0) - (partition.log_start or 0) for partition in partitions
    )
    size_bytes = sum(partition.size_bytes or 0 for partition in partitions)
    groups = [group.group for group in client.groups() if name in group.topics]
    document = {
        "name": name,
        "deleted": False,
        "dryRun": True,
        "partitions": len(partitions),
        "records": record_count,
        "sizeBytes": size_bytes,
        "groups": groups,
    }
    summary = (
        f"would delete {name}: {counted(len(partitions), 'partition')}, "
        f"{counted(record_count, 'record')}, {size_text(size_bytes)}"
    )
    return document, f"{summary}; read by {', '.join(groups)}" if groups else summary


def plan_restore(client: "Client", name_or_id: str, new_name: str | None) -> Plan:
    """Which deletion is meant, and under which name it would be."""
    deleted = _deleted(client.deleted_topics(), name_or_id)
    name = new_name or deleted.name
    if _named(client, name) is not None:
        raise TailraceError(
            f"topic {shown(name)} exists: give the restored one another name with --as"
        )
    document = {
        "name": name,
        "id": deleted.id,
        "dryRun": True,
        "partitions": deleted.partitions,
        "sealedPartitions": deleted.sealed_partitions,
        "sizeBytes": deleted.size_bytes,
        "deletedAt": deleted.deleted_at,
    }
    opened = counted(deleted.partitions - deleted.sealed_partitions, "partition")
    summary = (
        f"would restore {name}: {with_sealed(opened, deleted.sealed_partitions)}, "
        f"{size_text(deleted.size_bytes)}, deleted {deleted.deleted_at}"
    )
    return document, summary


def _named(client: "Client", name: str) -> "TopicInfo | None":
    try:
        return client.topic(name).topic
    except TopicNotFoundError:
        return None


def _deleted(topics: "list[DeletedTopic]", name_or_id: str) -> "DeletedTopic":
    matching = [topic for topic in topics if name_or_id in (topic.id, topic.name)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise TailraceError(
            f"no deleted topic {shown(name_or_id)} is there. "
            "Those that can be restored: tailrace topic list --deleted"
        )
    raise TailraceError(
        f"{len(matching)} deleted topics had the name {shown(name_or_id)}: give the id of one, "
        "from tailrace topic list --deleted"
    )


def _text(field: str, value: object) -> str:
    """ "retention 7d": named as its option."""
    name = field
    for unit, ending in _NAMES.items():
        name = name.removesuffix(unit) + ending if name.endswith(unit) else name
    return f"{name.replace('_', '-')} {_value_text(field, value)}"


def _option(field: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{field.replace('_', '-')}"
    return f"--{_text(field, value)}"


def _value_text(field: str, value: object) -> str:
    return _TEXTS.get(field, str)(value)
