"""The options of a batch read, with names and meaning of those of Spark's Kafka source; pure.

| option                   | default  | meaning                                                    |
|--------------------------|----------|------------------------------------------------------------|
| bootstrap.servers or url | required | http://host:port; several, a comma between: the first that |
|                          |          | answers                                                    |
| subscribe                | one of   | topics: a,b                                                |
| assign                   | these    | partitions: {"a":[0,1]}                                    |
| subscribePattern         | three    | regular expression that matches a topic's whole name       |
| startingOffsets          | earliest | or {"a":{"0":23,"1":-2}}; -2: earliest. A partition not    |
|                          |          | named is a newer one: it starts at its first offset        |
| endingOffsets            | latest   | or {"a":{"0":42,"1":-1}}, exclusive; -1: latest            |
| minPartitions            | none     | at least so many tasks, when there are as many records     |
| maxRecordsPerPartition   | none     | at most so many records a task                             |
| failOnDataLoss           | true     | false: warn, and read what is left                         |
| includeHeaders           | false    | adds the column headers                                    |
| fetchMaxBytes            | 4 MiB    | of one request's answer                                    |
| coalesceRows             | 20000    | rows of a record batch for Spark; small ones cost it CPU   |
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

from tailrace.errors import TailraceError

OffsetsByPartition = Mapping[str, Mapping[int, int]]  # topic, partition id, offset

LATEST = -1
EARLIEST = -2
FETCH_BYTES_DEFAULT = 4 * 1024 * 1024
FETCH_BYTES_MAX = 16 * 1024 * 1024  # docs/protocol.md, "Read"
COALESCE_ROWS_DEFAULT = 20_000
_INT64_MAX = 2**63 - 1

_URL_NAMES = ("bootstrap.servers", "url")
_URL_EXAMPLE = "http://127.0.0.1:9250"
_SELECTION_NAMES = ("subscribe", "assign", "subscribePattern")
_NAMES = (
    *_URL_NAMES,
    *_SELECTION_NAMES,
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "fetchMaxBytes",
    "coalesceRows",
)


class InvalidOptionError(TailraceError):
    """An option is unknown, missing, or has a value that cannot be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how; travels pickled to the executors."""

    urls: tuple[str, ...]
    partitions_by_topic: Mapping[str, frozenset[int] | None]  # None: all of the topic's
    topic_pattern: str | None  # in place of partitions_by_topic, which is then empty
    starting_offsets: OffsetsByPartition | None  # None: earliest
    ending_offsets: OffsetsByPartition | None  # None: latest
    partition_count_min: int
    partition_records_max: int
    fail_on_data_loss: bool
    include_headers: bool
    fetch_bytes_max: int
    coalesce_rows: int

    def selects(self, topic: str, partition: int | None = None) -> bool:
        """Whether the topic, or this partition of it, is asked for."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        if topic not in self.partitions_by_topic:
            return False
        partitions = self.partitions_by_topic[topic]
        return partition is None or partitions is None or partition in partitions


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Check every option; InvalidOptionError says in a sentence what to write instead.

    Names are taken in any case, since Spark hands them over in lower case.
    """
    _refuse_unknown(given)
    values = _Values(given)
    urls = values.urls()
    partitions_by_topic, topic_pattern = values.selection()
    options = ReadOptions(
        urls=urls,
        partitions_by_topic=partitions_by_topic,
        topic_pattern=topic_pattern,
        starting_offsets=values.offsets("startingOffsets", word="earliest", refused=LATEST),
        ending_offsets=values.offsets("endingOffsets", word="latest", refused=EARLIEST),
        partition_count_min=values.count("minPartitions", 1),
        partition_records_max=values.count("maxRecordsPerPartition", _INT64_MAX),
        fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
        include_headers=values.boolean("includeHeaders", default=False),
        fetch_bytes_max=values.count("fetchMaxBytes", FETCH_BYTES_DEFAULT, FETCH_BYTES_MAX),
        coalesce_rows=values.count("coalesceRows", COALESCE_ROWS_DEFAULT),
    )
    _refuse_unselected("startingOffsets", options, options.starting_offsets)
    _refuse_unselected("endingOffsets", options, options.ending_offsets)
    return options


def _refuse_unknown(given: Mapping[str, str]) -> None:
    name_by_lower = {name.lower(): name for name in _NAMES}
    for name in sorted(given):
        if name.lower() not in name_by_lower:
            close = difflib.get_close_matches(name.lower(), name_by_lower, n=1)
            hint = f"did you mean {name_by_lower[close[0]]}?" if close else "take it away."
            raise InvalidOptionError(
                f'a batch read has no option "{name}": {hint} Its options: {", ".join(_NAMES)}'
            )


def _refuse_unselected(name: str, options: ReadOptions, offsets: OffsetsByPartition | None) -> None:
    """JSON offsets may only name what is read: anything else is a slip of the pen."""
    for topic, by_partition in (offsets or {}).items():
        for partition in by_partition:
            if not options.selects(topic, partition):
                selections = ", ".join(_SELECTION_NAMES)
                raise InvalidOptionError(
                    f"{name} names {topic}/{partition}, which none of {selections} selects"
                )


class _Values:
    """Reads options by name; every method may raise InvalidOptionError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._by_lower = {name.lower(): value.strip() for name, value in given.items()}

    def text(self, name: str) -> str | None:
        """As given; None when it is not."""
        return self._by_lower.get(name.lower())

    def urls(self) -> tuple[str, ...]:
        """The brokers to ask, in order."""
        given = {text for name in _URL_NAMES if (text := self.text(name)) is not None}
        if len(given) != 1:
            raise InvalidOptionError(f"give one of {' or '.join(_URL_NAMES)}, like {_URL_EXAMPLE}")
        urls = _split(given.pop())
        if not urls or any(urlsplit(url).scheme != "http" for url in urls):
            _refuse("bootstrap.servers", ",".join(urls), f"a URL like {_URL_EXAMPLE}")
        return urls

    def selection(self) -> tuple[Mapping[str, frozenset[int] | None], str | None]:
        """Partitions by topic (None: all of them), or a pattern for topics."""
        given = {name: text for name in _SELECTION_NAMES if (text := self.text(name)) is not None}
        if len(given) != 1:
            raise InvalidOptionError(f"give exactly one of {', '.join(_SELECTION_NAMES)}")
        ((name, text),) = given.items()
        if name == "assign":
            return _parse_assignment(text), None
        if name == "subscribePattern":
            return {}, _parse_pattern(text)
        return dict.fromkeys(_split(text) or _refuse(name, text, "topics like a,b")), None

    def offsets(self, name: str, *, word: str, refused: int) -> OffsetsByPartition | None:
        """None for `word`, the default; `refused` is the one of -1, -2 that makes no sense here."""
        text = self.text(name)
        if text is None or text.lower() == word:
            return None
        wanted = f'{word}, or JSON like {{"a":{{"0":23}}}} without {refused}, in a batch read'
        offsets = _parse_offsets(name, text, wanted)
        if any(refused in by_partition.values() for by_partition in offsets.values()):
            _refuse(name, text, wanted)
        return offsets

    def count(self, name: str, default: int, count_max: int = _INT64_MAX) -> int:
        """A whole number in [1, count_max]."""
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch("[0-9]{1,19}", text) or not 1 <= int(text) <= count_max:
            _refuse(name, text, f"a whole number from 1 to {count_max}")
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        """True or false, in any case."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            _refuse(name, text, "true or false")
        return text.lower() == "true"


def _parse_assignment(text: str) -> Mapping[str, frozenset[int] | None]:
    wanted = 'JSON like {"a":[0,1]}'
    try:
        partitions_by_topic = {
            topic: frozenset(partitions) for topic, partitions in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        _refuse("assign", text, wanted)
    for partitions in partitions_by_topic.values():
        if not partitions or not all(type(partition) is int for partition in partitions):
            _refuse("assign", text, wanted)
    return partitions_by_topic


def _parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(f'subscribePattern "{text}": {error}') from error
    return text


def _parse_offsets(name: str, text: str, wanted: str) -> OffsetsByPartition:
    try:
        offsets = {
            topic: {int(partition): offset for partition, offset in by_partition.items()}
            for topic, by_partition in json.loads(text).items()
        }
    except (ValueError, AttributeError):
        _refuse(name, text, wanted)
    for by_partition in offsets.values():
        if not all(type(each) is int and each >= EARLIEST for each in by_partition.values()):
            _refuse(name, text, wanted)
    return offsets


def _split(text: str) -> tuple[str, ...]:
    """The parts between commas, without spaces around them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _refuse(name: str, text: str, wanted: str) -> NoReturn:
    raise InvalidOptionError(f"{name} must be {wanted}; it is '{text}'")
