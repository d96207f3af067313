"""Follows partitions: what they hold from given offsets on, then what comes, until stopped.

One thread a partition, with one connection and one long poll at a time; the caller's thread gets
their pages in the order in which they arrived. The threads end with the process. A partition whose
end is sealed is continued by its children, once all parents of theirs are read to their ends: so
order per key holds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Queue
from threading import Thread
from typing import NamedTuple

from tailrace.errors import TailraceError
from tailrace.sync import Client
from tailrace.values import Fetched, PartitionOffsets

WAIT_MS = 10_000  # of one long poll; far below the client's timeout
RETRY_AFTER_S = 0.5
QUEUED_PAGES_MAX = 16  # bounds memory when the output is slow


class Page(NamedTuple):
    """Some records, as the broker writes them."""

    lines: bytes


class Waiting(NamedTuple):
    """The broker does not serve this partition now; it is asked again."""

    partition: int
    error: TailraceError


class Resumed(NamedTuple):
    """It serves it again."""

    partition: int


class Ended(NamedTuple):
    """A sealed partition is read to its end."""

    partition: int
    children: list[PartitionOffsets]


class Failed(NamedTuple):
    """Asking again does not help."""

    error: TailraceError


Event = Page | Waiting | Resumed | Ended | Failed


class Place(NamedTuple):
    """What a thread reads."""

    client: Client
    topic: str
    partition: int
    page_records: int


class Lineage:
    """Which partitions may be read: those whose parents, when followed at all, have ended."""

    def __init__(self) -> None:
        self._unfinished: set[int] = set()
        self._waiting: dict[int, tuple[int, ...]] = {}
        self._known: set[int] = set()

    def add(self, partition: int, parents: tuple[int, ...]) -> bool:
        """Follow it too; False when it is followed already."""
        if partition in self._known:
            return False
        self._known.add(partition)
        self._unfinished.add(partition)
        self._waiting[partition] = parents
        return True

    def finish(self, partition: int) -> None:
        """It is read to its sealed end."""
        self._unfinished.remove(partition)

    def take_startable(self) -> list[int]:
        """Those that may be read now, each told once."""
        startable = [
            partition
            for partition, parents in self._waiting.items()
            if self._unfinished.isdisjoint(parents)
        ]
        for partition in startable:
            del self._waiting[partition]
        return startable


def follow(
    client: Client,
    topic: str,
    partitions: Iterable[PartitionOffsets],
    starts: Mapping[int, int],
    *,
    page_records: int,
    note: Callable[[str], None],
) -> Iterator[bytes]:
    """Records as NDJSON, page by page; never ends. TailraceError: what asking again cannot mend."""
    events: Queue[Event] = Queue(QUEUED_PAGES_MAX)
    offsets = dict(starts)
    lineage = Lineage()
    waiting: set[int] = set()
    for each in partitions:
        lineage.add(each.partition, each.parents)
    while True:
        for partition in lineage.take_startable():
            place = Place(client.twin(), topic, partition, page_records)
            Thread(target=_poll, args=(place, offsets[partition], events), daemon=True).start()
        match events.get():
            case Page(lines):
                yield lines
            case Ended(ended, children):
                for child in children:
                    if lineage.add(child.partition, child.parents):
                        offsets[child.partition] = child.readable().start
                lineage.finish(ended)
            case Waiting(partition, error):
                if not waiting:
                    note(f"{str(error).partition('. ')[0]}; trying again")
                waiting.add(partition)
            case Resumed(partition):
                waiting.discard(partition)
                if not waiting:
                    note("the broker answers again")
            case Failed(error):
                raise error


def _poll(place: Place, offset: int, events: "Queue[Event]") -> None:
    """A thread's life: until the partition's sealed end, or an error that stays."""
    is_waiting = False
    with place.client as client:
        while True:
            try:
                page = client.read_lines(
                    place.topic,
                    place.partition,
                    offset,
                    max_records=place.page_records,
                    wait_ms=0 if is_waiting else WAIT_MS,
                )
                ended = None if page.body or not page.is_sealed else _ended(client, place, page)
            except TailraceError as error:
                if not error.retriable:
                    events.put(Failed(error))
                    return
                events.put(Waiting(place.partition, error))
                is_waiting = True
                time.sleep(RETRY_AFTER_S)
                continue
            if is_waiting:
                events.put(Resumed(place.partition))
                is_waiting = False
            if page.body:
                events.put(Page(page.body))
            if ended:
                events.put(ended)
                return
            offset = page.next_offset


def _ended(client: Client, place: Place, page: Fetched) -> Ended:
    """With all that has to be known of the children."""
    listing = client.offsets([place.topic]) if page.children else []
    return Ended(place.partition, [each for each in listing if each.partition in page.children])
