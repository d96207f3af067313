"""Which files a broker's directory has lost: those that its other files say must be there.

What is only there at times, and why it is always there when it is listed: docs/formats.md,
"Inventory".
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.cli.stored.damage_files import read_damage
from tailrace.cli.stored.logs import SEGMENT_NAME, Finding
from tailrace.wire import (
    DELETED_TOPIC_FILE,
    INVENTORY_FILE,
    LOG_START_FILE,
    META_FILE,
    METADATA_LOGS,
    PURGED_SUFFIX,
    TRASH,
)

RESTORE = "restore it from a copy"

Document = dict[str, Any]


def missing_files(
    data: Path, *, meta: Document, stop: Document, inventory: Document
) -> list[Finding]:
    """What is gone of a `data` directory; by its meta.json, clean-stop.json and inventory.json.

    Each is empty when it is missing, or cannot be read.
    """
    if not data.is_dir():
        return []
    return [
        *_missing_metadata(data, meta),
        *_missing_journal(data, inventory, is_clean=_is_clean(meta, stop)),
        *_accepted_losses(data),
        *_missing_partitions(data, inventory),
    ]


def _missing_metadata(data: Path, meta: Document) -> Iterator[Finding]:
    path = data / META_FILE
    if not path.exists() and _holds_data(data):
        yield _gone(path, "is missing: it says whose disk this is, and the broker does not start")
    if meta and not (data / INVENTORY_FILE).exists():
        yield _gone(data / INVENTORY_FILE, "is missing: it says which files must be here")
    metadata = data / "metadata"
    if meta.get("clusterId") is None:
        return
    lost = "has lost what the ring agreed on, {}, and the broker does not start"
    if not any(metadata.glob("*.snapshot")):
        yield _gone(metadata, lost.format("a .snapshot file"))
    for name in METADATA_LOGS:
        if not (metadata / name).exists():
            yield _gone(metadata / name, "is missing, and the broker does not start")


def _missing_journal(data: Path, inventory: Document, *, is_clean: bool) -> Iterator[Finding]:
    for name in inventory.get("journalFiles", ()):
        path = data / "journal" / name
        if path.exists():
            continue
        if is_clean:
            text = "is missing; the broker was stopped, so it held nothing that is not elsewhere"
            yield Finding(path, None, text, is_bad=False)
        elif path.with_name(f"{name}.lost").exists():
            text = "is missing, which somebody has accepted: the next start goes on without it"
            yield Finding(path, None, text, is_bad=False)
        else:
            lost = path.with_name(f"{name}.lost")
            accept = f"or accept the loss: mkdir -p {path.parent} && touch {lost}"
            yield Finding(
                path, None, f"is missing, with events that only it held; {RESTORE}, {accept}"
            )


def _accepted_losses(data: Path) -> Iterator[Finding]:
    for path in sorted(data.glob("journal/*.journal.lost.*")):
        text = "somebody has accepted that events of the journal are lost; of which partitions, "
        yield Finding(path, None, f"{text}is known where later events show it", is_bad=False)


def _missing_partitions(data: Path, inventory: Document) -> Iterator[Finding]:
    """Retention leaves a file where it has removed all segments; a deletion moves the directory."""
    for topic_id, newest in inventory.get("newestSegments", {}).items():
        if (data / TRASH / f"{topic_id}{PURGED_SUFFIX}").exists():
            continue
        buried = data / TRASH / topic_id
        topic = buried if buried.exists() else data / topic_id
        if topic == buried and not (topic / DELETED_TOPIC_FILE).exists():
            yield _gone(
                topic / DELETED_TOPIC_FILE, "is missing: without it the topic cannot be restored"
            )
        for partition, base_offset in newest.items():
            yield from _missing_segments(topic / partition, base_offset)


def _missing_segments(partition: Path, newest: int) -> Iterator[Finding]:
    """By the base offset of the last segment that must be there."""
    found = _segments_in(partition)
    log_start = _log_start(partition)
    recorded = read_damage(partition)
    lost_end = max((each.end_offset for each in recorded.losses), default=0) if recorded else 0
    is_gone = newest > max(found, default=-1) and newest >= max(log_start or 0, lost_end)
    if is_gone and not found:
        yield _gone(partition, "has lost its segments")
    elif is_gone:
        yield _gone(partition / f"{newest:020d}.log", "is missing: it was the last segment")


def _gone(path: Path, text: str) -> Finding:
    return Finding(path, None, f"{text}; {RESTORE}")


def _is_clean(meta: Document, stop: Document) -> bool:
    return bool(stop) and stop["boot"] == meta.get("boot")


def _holds_data(data: Path) -> bool:
    """A directory that is only being founded holds nothing."""
    folders = ("metadata", "journal")
    has_files = any(any((data / name).glob("*")) for name in folders)
    return has_files or any(SEGMENT_NAME.fullmatch(path.name) for path in data.glob("*/*/*"))


def _segments_in(partition: Path) -> list[int]:
    """Base offsets of its segments."""
    names = [each.name for each in partition.iterdir()] if partition.is_dir() else []
    return [int(Path(name).stem) for name in names if SEGMENT_NAME.fullmatch(name)]


def _log_start(partition: Path) -> int | None:
    """Where retention has moved it; None: nowhere, or it cannot be read, which is a finding."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        return int(json.loads((partition / LOG_START_FILE).read_bytes())["logStart"])
    return None
