"""Which files a broker's directory has lost: those that its other files say must be there.

What is only there at times, and why it is always there when it is listed: docs/formats.md,
"Inventory".
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.cli.stored.logs import SEGMENT_NAME, Finding

RESTORE = "restore it from a copy"
TRASH, PURGED = "trash", ".purged"
METADATA_LOGS = ("0.blocks", "1.blocks")
VERSION_WITH_INVENTORY = 3

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
        *_missing_partitions(data, inventory),
    ]


def _missing_metadata(data: Path, meta: Document) -> Iterator[Finding]:
    path = data / "meta.json"
    if not path.exists() and _holds_data(data):
        yield _gone(path, "is missing: it says whose disk this is, and the broker does not start")
    if meta.get("version", 0) >= VERSION_WITH_INVENTORY and not (data / "inventory.json").exists():
        yield _gone(data / "inventory.json", "is missing: it says which files must be here")
    metadata = data / "metadata"
    if meta.get("clusterId") is None or (metadata / "topics.json").exists():
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
            yield _gone(path, "is missing, with events that only it held")


def _missing_partitions(data: Path, inventory: Document) -> Iterator[Finding]:
    """Retention leaves a file where it has removed all segments, a deletion one in the trash."""
    for topic_id, partitions in inventory.get("partitions", {}).items():
        if any((data / TRASH / f"{topic_id}{suffix}").exists() for suffix in ("", PURGED)):
            continue
        for partition in partitions:
            path = data / topic_id / str(partition)
            if not (path / "log-start.json").exists() and not _has_segments(path):
                yield _gone(path, "has lost its segments")


def _gone(path: Path, text: str) -> Finding:
    return Finding(path, None, f"{text}; {RESTORE}")


def _is_clean(meta: Document, stop: Document) -> bool:
    return bool(stop) and stop["boot"] == meta.get("boot")


def _holds_data(data: Path) -> bool:
    """A directory that is only being founded holds nothing."""
    folders = ("metadata", "journal")
    has_files = any(any((data / name).glob("*")) for name in folders)
    return has_files or any(SEGMENT_NAME.fullmatch(path.name) for path in data.glob("*/*/*"))


def _has_segments(path: Path) -> bool:
    return path.is_dir() and any(SEGMENT_NAME.fullmatch(each.name) for each in path.iterdir())
