"""Follows partitions: what they hold from given offsets on, then what comes, until stopped.

One thread a partition, with one connection and one long poll at a time; the caller's thread gets
their pages in the order in which they arrived. The threads end with the process. A partition whose
end is sealed is continued by its children, once all parents of theirs are read to their ends: so
order per key holds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Queue
from threading import Thread
from typing import NamedTuple

from tailrace.cli.consuming.pages import Key, Page
from tailrace.cli.consuming.quarantined import Quarantined, Removed
from tailrace.errors import ProblemError, TailraceError
from tailrace.sync import Client
from tailrace.values import Fetched, PartitionOffsets

WAIT_MS = 10_000  # of one long poll; far below the client's timeout
RETRY_AFTER_S = 0.5
LISTING_AFTER_S = 0.05  # until who was asked knows the children too
QUEUED_PAGES_MAX = 16  # bounds memory when the output is slow


class Waiting(NamedTuple):
    """The broker does not serve this partition now; it is asked again."""

    key: Key
    error: TailraceError


class Resumed(NamedTuple):
    """It serves it again."""

    key: Key


class Sealed(NamedTuple):
    """A sealed partition is read to its end."""

    key: Key
    children: list[PartitionOffsets]


class Gone(NamedTuple):
    """The partition is no more: its records were removed, after they were read or before."""

    key: Key
    children: list[PartitionOffsets]


class Skipped(NamedTuple):
    """Damaged or removed offsets are passed over."""

    passed: Quarantined | Removed


class Failed(NamedTuple):
    """Asking again does not help."""

    error: TailraceError


Event = Page | Waiting | Resumed | Sealed | Gone | Skipped | Failed


class Lineage:
    """Which partitions may be read: those whose parents, when followed at all, have ended."""

    def __init__(self) -> None:
        self._unfinished: set[Key] = set()
        self._waiting: dict[Key, Sequence[Key]] = {}
        self._known: set[Key] = set()

    def add(self, partition: Key, parents: Sequence[Key]) -> bool:
        """Follow it too; False when it is followed already."""
        if partition in self._known:
            return False
        self._known.add(partition)
        self._unfinished.add(partition)
        self._waiting[partition] = parents
        return True

    def finish(self, partition: Key) -> None:
        """It is read to its sealed end."""
        self._unfinished.remove(partition)

    def take_startable(self) -> list[Key]:
        """Those that may be read now, each reported once."""
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
    partitions: Iterable[PartitionOffsets],
    starts: Mapping[Key, int],
    *,
    page_records: int,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Page]:
    """Records as NDJSON, page by page; never ends. TailraceError: asking again does not help.

    `note` gets when brokers do not answer, `warn` which damaged offsets are left out.
    """
    events: Queue[Event] = Queue(QUEUED_PAGES_MAX)
    offsets = dict(starts)
    lineage = Lineage()
    waiting: set[Key] = set()
    for partition in partitions:
        lineage.add(*_with_parents(partition))
    while True:
        for key in lineage.take_startable():
            arguments = (client.twin(), key, offsets[key], page_records, events)
            Thread(target=_poll, args=arguments, daemon=True).start()
        match events.get():
            case Page() as page:
                yield page
            case Sealed(ended, children) | Gone(ended, children) as end:
                if isinstance(end, Gone):
                    warn(f"partition {ended[1]} of {ended[0]} is gone: no record of it is left")
                for child in children:
                    if lineage.add(*_with_parents(child)):
                        offsets[child.topic, child.partition] = start_of_child(child)
                lineage.finish(ended)
            case Waiting(key, error):
                if not waiting:
                    note(f"{str(error).partition('. ')[0]}; trying again")
                waiting.add(key)
            case Resumed(key):
                waiting.discard(key)
                if not waiting:
                    note("the broker answers again")
            case Skipped(passed):
                warn(str(passed))
            case Failed(error):
                raise error


def _with_parents(offsets: PartitionOffsets) -> tuple[Key, list[Key]]:
    topic = offsets.topic
    return (topic, offsets.partition), [(topic, parent) for parent in offsets.parents]


def _poll(client: Client, key: Key, offset: int, page_records: int, events: "Queue[Event]") -> None:
    """A thread's work: until the partition's sealed end, or an error that stays."""
    is_waiting = False
    with client:
        while True:
            try:
                page = client.read_lines(
                    *key,
                    offset,
                    max_records=page_records,
                    wait_ms=0 if is_waiting else WAIT_MS,
                )
                is_at_end = page.is_sealed and not page.body
                ended = sealed_end(key, page, client.offsets([key[0]])) if is_at_end else None
            except TailraceError as error:
                passed = Quarantined.at(offset, error) or Removed.at(key, offset, None, error)
                if passed is not None:
                    events.put(Skipped(passed))
                    offset = passed.next_offset
                    continue
                if not error.retriable:
                    events.put(_gone_or_failed(client, key, error))
                    return
                events.put(Waiting(key, error))
                is_waiting = True
                time.sleep(RETRY_AFTER_S)
                continue
            if is_waiting:
                events.put(Resumed(key))
                is_waiting = False
            if page.body:
                events.put(Page(key[0], page.body))
            if ended:
                events.put(ended)
                return
            offset = page.next_offset
            if is_at_end:
                time.sleep(LISTING_AFTER_S)


def sealed_end(key: Key, page: Fetched, listing: Iterable[PartitionOffsets]) -> Sealed | None:
    """Return that a partition has ended, with its children; None: not all of them are listed yet.

    Brokers do not hear of a step in the same moment.
    """
    children = [each for each in listing if each.partition in page.children]
    return Sealed(key, children) if len(children) == len(page.children) else None


def children_of_gone(key: Key, listing: Iterable[PartitionOffsets]) -> list[PartitionOffsets]:
    """Return what continues a partition that is gone: those that name it, else all newer ones."""
    newer = [each for each in listing if each.topic == key[0] and each.partition > key[1]]
    return [each for each in newer if key[1] in each.parents] or newer


def _gone_or_failed(client: Client, key: Key, error: TailraceError) -> Gone | Failed:
    if not isinstance(error, ProblemError) or error.type != "partition-not-found":
        return Failed(error)
    try:
        children = children_of_gone(key, client.offsets([key[0]]))
    except TailraceError:
        return Failed(error)
    return Gone(key, children) if children else Failed(error)


def start_of_child(child: PartitionOffsets) -> int:
    """Return where its records begin; PartitionDamagedError. Nobody may lead it yet."""
    if child.log_start is None and child.state != "damaged":
        return child.first_offset
    return child.readable().start
