"""The events of the main job, and the check that a topic gives them back in order.

Reads the input file; starts nothing and knows no broker.
"""

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tailrace.cli.producing.form import Form, parse_key_path


class UpError(Exception):
    """The job cannot go on, or a check is violated: one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Events:
    """What to produce, in order; `keys[i]` belongs to `values[i]` and is its field `key`."""

    topic: str
    key: str
    keys: list[bytes]
    values: list[bytes]

    @property
    def value_bytes(self) -> int:
        """Of all values together."""
        return sum(map(len, self.values))


def load_events(path: Path, *, key: str) -> Events:
    """The lines of an NDJSON file (also .gz), keyed by a field like `.origin` or `.user.id`."""
    try:
        form = Form(key_path=parse_key_path(key))
    except ValueError as error:
        raise UpError(f"KEY: {error}") from error
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            keys, values, _, bad_line = form.records(stream.readlines(), json_check=True)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UpError(f"INPUT={path} cannot be read: {reason}") from error
    if bad_line:
        index, reason = bad_line
        raise UpError(f"{path}: line {index + 1} {reason}")
    if not values:
        raise UpError(f"INPUT={path} holds no event")
    return Events(_topic_name(path), key, [each for each in keys if each is not None], values)


class OrderCheck:
    """Compares a topic's records with what was sent: per key all of it, in its order, once."""

    def __init__(self, events: Events, *, repeat_count: int) -> None:
        self._repeat_count = repeat_count
        self._sent: Mapping[bytes, list[bytes]] = _by_key(events)
        self._read_count = dict.fromkeys(self._sent, 0)
        self._partition: dict[bytes, int] = {}

    def feed(self, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Take (key, value) pairs in the order of their offsets, partition after partition.

        UpError at the first that is not the one to come.
        """
        for key, value in records:
            if key is None or key not in self._sent:
                raise UpError(f"partition {partition} holds key {key!r}, which was not sent")
            if self._partition.setdefault(key, partition) != partition:
                raise UpError(f"key {key!r} is in two partitions")
            sent = self._sent[key]
            index = self._read_count[key]
            if index == len(sent) * self._repeat_count:
                raise UpError(f"key {key!r} has more events than were sent")
            if value != sent[index % len(sent)]:
                raise UpError(
                    f"event {index + 1} of key {key!r} is not the one that was sent: {value!r}"
                )
            self._read_count[key] = index + 1

    def finish(self) -> int:
        """How many events were read back; UpError when one is missing."""
        for key, sent in self._sent.items():
            missing_count = len(sent) * self._repeat_count - self._read_count[key]
            if missing_count:
                raise UpError(f"key {key!r}: the last {missing_count:,} events are missing")
        return sum(self._read_count.values())


def _by_key(events: Events) -> Mapping[bytes, list[bytes]]:
    values_by_key: dict[bytes, list[bytes]] = defaultdict(list)
    for key, value in zip(events.keys, events.values, strict=True):
        values_by_key[key].append(value)
    return dict(values_by_key)


def _topic_name(path: Path) -> str:
    """The file's name up to its first dot, with `-` for what a topic name cannot have."""
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", path.name.partition(".")[0])
    return stem.lstrip("_")[:249] or "events"
