"""Reads options as values: text by text, each refused with what to write instead; pure.

Which options there are, and what they mean: `tailrace.spark.options`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlsplit

from tailrace.errors import TailraceError
from tailrace.protocol.endpoint import with_scheme

OffsetsByPartition = Mapping[str, Mapping[int, int]]  # topic, partition id, offset or timestamp

LATEST = -1
EARLIEST = -2
INT64_MAX = 2**63 - 1

URL_NAMES = ("bootstrap.servers", "url")
SELECTION_NAMES = ("subscribe", "assign", "subscribePattern")
_URL_EXAMPLE = "http://127.0.0.1:9250"
_TIMESTAMP_MS_MAX = INT64_MAX // 1000  # it becomes microseconds
_SECONDS_BY_UNIT = {"": 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class InvalidOptionError(TailraceError):
    """An option is unknown, missing, or has a value that cannot be meant."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends, by `option`: offsets, or times in µs since the epoch.

    `everywhere` holds for each partition that `by_partition` does not name; None: for none of them.
    """

    option: str
    everywhere: int | None = None
    by_partition: OffsetsByPartition = field(default_factory=dict)
    is_time: bool = False

    def of(self, topic: str, partition: int) -> int | None:
        """LATEST and EARLIEST are offsets, too."""
        return self.by_partition.get(topic, {}).get(partition, self.everywhere)

    def named(self) -> set[tuple[str, int]]:
        """The partitions that it names."""
        return {
            (topic, partition)
            for topic, by_partition in self.by_partition.items()
            for partition in by_partition
        }

    def values(self) -> set[int]:
        """All of them, once."""
        named = {value for by_id in self.by_partition.values() for value in by_id.values()}
        return named if self.everywhere is None else named | {self.everywhere}


class Values:
    """Reads options by name, in any case; every method may raise InvalidOptionError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._by_lower = {name.lower(): value.strip() for name, value in given.items()}

    def text(self, name: str) -> str | None:
        """As given; None when it is not."""
        return self._by_lower.get(name.lower())

    def urls(self) -> tuple[str, ...]:
        """The brokers to ask, in order."""
        given = {text for name in URL_NAMES if (text := self.text(name)) is not None}
        if len(given) != 1:
            raise InvalidOptionError(f"give one of {' or '.join(URL_NAMES)}, like {_URL_EXAMPLE}")
        urls = tuple(map(with_scheme, _split(given.pop())))
        if not all(map(_is_plain, urls)):
            plain = ",".join(url.replace("https://", "http://", 1) for url in urls)
            wanted = f"of plain http, since Spark connects without TLS: {plain}"
            refuse("bootstrap.servers", ",".join(urls), wanted)
        if not urls or not all(map(_is_broker_url, urls)):
            refuse("bootstrap.servers", ",".join(urls), f"a URL like {_URL_EXAMPLE}")
        return urls

    def selection(self) -> tuple[Mapping[str, frozenset[int] | None], str | None]:
        """Partitions by topic (None: all of them), or a pattern for topics."""
        given = {name: text for name in SELECTION_NAMES if (text := self.text(name)) is not None}
        if len(given) != 1:
            raise InvalidOptionError(f"give exactly one of {', '.join(SELECTION_NAMES)}")
        ((name, text),) = given.items()
        if name == "assign":
            return _parse_assignment(text), None
        if name == "subscribePattern":
            return {}, _parse_pattern(text)
        return dict.fromkeys(_split(text) or refuse(name, text, "topics like a,b")), None

    def offsets(self, name: str, words: Mapping[str, int], default: int) -> Bound:
        """One of `words`, or JSON; it may hold those of LATEST and EARLIEST that have a word."""
        text = self.text(name)
        if text is None:
            return Bound(name, default)
        if text.lower() in words:
            return Bound(name, words[text.lower()])
        refused = {LATEST, EARLIEST} - set(words.values())
        without = "".join(f" without {value}, in a batch read" for value in refused)
        wanted = f'{" or ".join(words)}, or JSON like {{"a":{{"0":23}}}}{without}'
        bound = Bound(name, by_partition=_parse_by_partition(name, text, wanted, EARLIEST))
        return bound if refused.isdisjoint(bound.values()) else refuse(name, text, wanted)

    def timestamp(self, name: str) -> Bound | None:
        """Milliseconds since the epoch, of all partitions; None when not given."""
        if self.text(name) is None:
            return None
        return Bound(name, self.count(name, 0, 0, _TIMESTAMP_MS_MAX) * 1000, is_time=True)

    def timestamps(self, name: str) -> Bound | None:
        """Milliseconds since the epoch, by partition; None when not given."""
        text = self.text(name)
        if text is None:
            return None
        wanted = 'JSON like {"a":{"0":1764000000000}}, in milliseconds since the epoch'
        times_ms = _parse_by_partition(name, text, wanted, 0, _TIMESTAMP_MS_MAX)
        times_us = {
            topic: {partition: time_ms * 1000 for partition, time_ms in by_partition.items()}
            for topic, by_partition in times_ms.items()
        }
        return Bound(name, by_partition=times_us, is_time=True)

    def count(self, name: str, default: int, count_min: int = 1, count_max: int = INT64_MAX) -> int:
        """A whole number in [count_min, count_max]."""
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch("[0-9]{1,19}", text) or not count_min <= int(text) <= count_max:
            refuse(name, text, f"a whole number from {count_min} to {count_max}")
        return int(text)

    def count_or_none(self, name: str) -> int | None:
        """A whole number from 1; None when not given."""
        return None if self.text(name) is None else self.count(name, 1)

    def seconds(self, name: str, default: float) -> float:
        """A time like 30s or 15m; milliseconds without a unit."""
        text = self.text(name)
        if text is None:
            return default
        match_ = re.fullmatch("([0-9]{1,12}) ?([a-z]*)", text.lower())
        if match_ is None or match_[2] not in _SECONDS_BY_UNIT:
            refuse(name, text, "a time like 500ms, 30s, 15m or 1h")
        return int(match_[1]) * _SECONDS_BY_UNIT[match_[2]]

    def group(self, name: str) -> str | None:
        """A consumer group's name; None when not given."""
        text = self.text(name)
        if text is not None and not (re.fullmatch(r"[^\s/]{1,249}", text) and text.isprintable()):
            refuse(name, text, "1 to 249 visible characters, none of them /")
        return text

    def boolean(self, name: str, *, default: bool) -> bool:
        """True or false, in any case."""
        return self.word(name, ("true", "false"), default="true" if default else "false") == "true"

    def word(self, name: str, words: tuple[str, str], *, default: str) -> str:
        """One of two words, in any case."""
        text = self.text(name)
        if text is None:
            return default
        return text.lower() if text.lower() in words else refuse(name, text, " or ".join(words))


def refuse(name: str, text: str, wanted: str) -> NoReturn:
    """Raise what to write instead."""
    raise InvalidOptionError(f"{name} must be {wanted}; it is '{text}'")


def _is_plain(url: str) -> bool:
    return not url.startswith("https://")


def _is_broker_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    return parts.scheme == "http" and bool(parts.hostname) and has_port


def _parse_assignment(text: str) -> Mapping[str, frozenset[int] | None]:
    wanted = 'JSON like {"a":[0,1]}'
    try:
        partitions_by_topic = {
            topic: frozenset(partitions) for topic, partitions in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        refuse("assign", text, wanted)
    if not partitions_by_topic:
        refuse("assign", text, wanted)
    for partitions in partitions_by_topic.values():
        if not partitions or not all(type(partition) is int for partition in partitions):
            refuse("assign", text, wanted)
    return partitions_by_topic


def _parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(f'subscribePattern "{text}": {error}') from error
    return text


def _parse_by_partition(
    name: str, text: str, wanted: str, value_min: int, value_max: int = INT64_MAX
) -> OffsetsByPartition:
    try:
        values = {
            topic: {int(partition): value for partition, value in by_partition.items()}
            for topic, by_partition in json.loads(text).items()
        }
    except (ValueError, AttributeError):
        refuse(name, text, wanted)
    for by_partition in values.values():
        for value in by_partition.values():
            if type(value) is not int or not value_min <= value <= value_max:
                refuse(name, text, wanted)
    return values


def _split(text: str) -> tuple[str, ...]:
    """The parts between commas, without spaces around them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
