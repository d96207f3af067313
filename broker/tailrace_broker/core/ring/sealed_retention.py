"""What retention leaves of sealed ranges: one broker decides, and the state records it.

Every holder removes what the state says and no more, so that a copy that is read begins where all
others do. A partition without records leaves the state, and so does a range without partitions;
what followed it follows what was before it. So the state is bounded by what is stored, not by how
often the ring has grown and shrunk.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from tailrace_broker.core.ring.copies import live_copies
from tailrace_broker.core.ring.topics import bounds_of, slices_in, topic_with_id
from tailrace_broker.model.commands import InheritedAll, TrimSealed
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import (
    RangeState,
    Refusal,
    Registration,
    RingState,
    Slices,
    TopicState,
)
from tailrace_broker.model.topic import RetentionBounds, is_internal


def decider_of(state: RingState, held: RangeState) -> int | None:
    """The broker that decides for a sealed range: the first with a live copy; None: there is none
    now.
    """
    return next(iter(live_copies(state, held)), None)


def has_partitions(state: RingState, range_id: int) -> bool:
    """Whether a topic has some in the range, deleted ones included. O(topics)."""
    topics = chain(state.topics.values(), (each.topic for each in state.deleted.values()))
    return any(slices.range_id == range_id for topic in topics for slices in topic.slices)


def decision(
    state: RingState,
    held: RangeState,
    mine: Registration,
    start_of: Callable[[LogKey], int | None],
    may_leave: Callable[[LogKey], bool],
) -> TrimSealed | None:
    """Return what the broker that decides for a sealed range proposes; None: nothing has moved.

    `start_of`: where a log is to begin by the settings in the state; None: it is not known, and
    its topic stays as it is.
    `may_leave`: of a partition without records, whether it has been so for long enough. Internal
    topics keep what they have until it is inherited. O(topics, partitions of the range).
    """
    starts, kept, own = {}, {}, slices_in(state, held.id)
    for topic in state.topics.values():
        slices = own.get(topic.id)
        if slices is not None and not is_internal(topic.name):
            moved = _moved(topic, slices, start_of, may_leave)
            if moved is not None:
                starts[topic.id] = moved
                if topic.settings.kept != RetentionBounds():
                    kept[topic.id] = topic.settings.kept
    if not starts and has_partitions(state, held.id):
        return None
    return TrimSealed(held.id, mine.ordinal, mine.number, starts, kept)


def _moved(
    topic: TopicState,
    slices: Slices,
    start_of: Callable[[LogKey], int | None],
    may_leave: Callable[[LogKey], bool],
) -> tuple[int, ...] | None:
    """The log starts of its partitions in the range, where one of them moves or leaves.

    Of one that has no records and is not to leave yet the first offset, which moves nothing.
    """
    known = slices.log_starts or slices.firsts
    starts, has_moved = [], False
    for index, (least, end) in enumerate(zip(known, slices.sealed_ends, strict=True)):
        if index in slices.gone:
            starts.append(end)
            continue
        key = LogKey(topic.id, slices.first_partition + index)
        start = start_of(key)
        if start is None:
            return None
        first = slices.firsts[index]
        leaves = least == end and (first == end or may_leave(key))
        starts.append(first if least == end and not leaves else max(start, least))
        has_moved = has_moved or start > least or leaves
    return tuple(starts) if has_moved else None


def trim_sealed(state: RingState, command: TrimSealed) -> RingState | Refusal:
    """Raise the log starts to these; what had no records before leaves, and then the range.

    So there is a state with the log start of each partition at its end: from it the groups learn
    what they have not read (`core.groups.group.Group.follow`).
    """
    held = state.ranges.get(command.range_id)
    if held is None:
        return Refusal("range-not-found", f"there is no range {command.range_id}")
    refusal = _check_decider(state, held, command)
    if refusal is not None:
        return refusal
    topics, own = {**state.topics}, slices_in(state, held.id)
    for topic in state.topics.values():
        starts, slices = command.starts.get(topic.id), own.get(topic.id)
        if starts is None or slices is None:  # or it has none there any more
            continue
        decided_by = command.kept.get(topic.id, RetentionBounds())
        if decided_by != topic.settings.kept:  # it was altered meanwhile
            continue
        trimmed = _trimmed(state, topic, slices, starts)
        if isinstance(trimmed, Refusal):
            return trimmed
        topics[topic.name] = trimmed
    after = replace(state, topics=topics)
    if has_partitions(after, held.id):
        return after
    ranges = {**state.ranges}
    del ranges[held.id]
    return replace(after, ranges=ranges)


def inherited(state: RingState, command: InheritedAll) -> RingState | Refusal:
    """Let the partition follow nothing any more; a parent that nothing follows leaves."""
    topic = topic_with_id(state, command.topic_id)
    if topic is None or not is_internal(topic.name):
        return Refusal("topic-not-found", f"there is no internal topic {command.topic_id}")
    lineage = _Descent(state, topic)
    if command.partition not in lineage.nodes:
        return Refusal(
            "partition-not-found", f'topic "{topic.name}" has no partition {command.partition}'
        )
    lineage.cut(command.partition)
    return replace(state, topics={**state.topics, topic.name: lineage.followed()})


def _check_decider(state: RingState, held: RangeState, command: TrimSealed) -> Refusal | None:
    if command.ordinal != decider_of(state, held):
        return Refusal(
            "not-the-decider", f"broker {command.ordinal} does not decide for range {held.id}"
        )
    if command.registration != state.brokers[command.ordinal].number:
        return Refusal("stale-registration", f"broker {command.ordinal} has registered again")
    return None


def _trimmed(
    state: RingState, topic: TopicState, slices: Slices, starts: tuple[int, ...]
) -> TopicState | Refusal:
    if len(starts) != len(slices.starts) or not all(
        first <= start <= end
        for first, start, end in zip(slices.firsts, starts, slices.sealed_ends, strict=True)
    ):
        return Refusal(
            "invalid-parameter",
            f'a log start of topic "{topic.name}" is not one of its logs in range '
            f"{slices.range_id}",
        )
    known = slices.log_starts or slices.firsts
    moved = tuple(map(max, starts, known))
    leaving = [
        slices.first_partition + index
        for index, bounds in enumerate(zip(known, starts, slices.sealed_ends, strict=True))
        if len({*bounds}) == 1 and index not in slices.gone
    ]
    if not leaving:
        after = replace(slices, log_starts=moved)
        rows = tuple(after if each is slices else each for each in topic.slices)
        return replace(topic, slices=rows)
    lineage = _Descent(state, topic)
    for partition in leaving:
        lineage.remove(partition)
    return lineage.followed({slices.range_id: moved})


@dataclass(slots=True)
class _Node:
    """A partition: where it is in the topic's slices, its tokens, and what of the others that are
    there it follows, and precedes.
    """

    row: int
    index: int
    start: int
    end: int
    parents: list[int]
    children: list[int]


class _Descent:
    """Which partitions of a topic follow which, while some leave."""

    def __init__(self, state: RingState, topic: TopicState) -> None:
        self.nodes: dict[int, _Node] = {}
        self._topic = topic
        self._gone = defaultdict[int, set[int]](set)  # by row
        self._changed = set[int]()  # rows
        self._cut = set[int]()
        for row, slices in enumerate(topic.slices):
            bounds = bounds_of(slices, state.ranges[slices.range_id].end)
            for index, (start, end) in enumerate(bounds):
                if index not in slices.gone:
                    parents = slices.parents[index] if slices.parents else ()
                    inherited = slices.inherited[index] if slices.inherited else ()
                    children = slices.children[index] if slices.children else ()
                    node = _Node(row, index, start, end, [*parents, *inherited], [*children])
                    self.nodes[slices.first_partition + index] = node
        for node in self.nodes.values():
            node.parents = [each for each in node.parents if each in self.nodes]

    def remove(self, partition: int) -> None:
        """Take a partition out, and link those before and after it that share tokens."""
        node = self._gone_node(partition)
        for parent in node.parents:
            links = self._overlapping(parent, node.children)
            _replace(self.nodes[parent].children, partition, links)
        for child in node.children:
            links = self._overlapping(child, node.parents)
            _replace(self.nodes[child].parents, partition, links)
        self._changed |= {self.nodes[each].row for each in (*node.parents, *node.children)}

    def cut(self, partition: int) -> None:
        """Take a partition's parents away, and take out each one that nothing follows then."""
        waiting = [partition]
        while waiting:
            child = waiting.pop()
            node = self.nodes[child]
            for parent in node.parents:
                children = self.nodes[parent].children
                children.remove(child)
                self._changed.add(self.nodes[parent].row)
                if not children:
                    waiting.append(parent)
            node.parents.clear()
            self._cut.add(child)
            self._changed.add(node.row)
            if child != partition:
                self._gone_node(child)

    def followed(self, log_starts: Mapping[int, tuple[int, ...]] | None = None) -> TopicState:
        """Return the topic with the partitions that are left; `log_starts`: new ones, by range."""
        kept = []
        for row, slices in enumerate(self._topic.slices):
            starts = (log_starts or {}).get(slices.range_id, slices.log_starts)
            after = slices
            if row in self._changed or starts != slices.log_starts:
                after = self._after(row, slices, starts)
            if after.partition_count:
                kept.append(after)
        return replace(self._topic, slices=tuple(kept))

    def _gone_node(self, partition: int) -> _Node:
        node = self.nodes.pop(partition)
        self._gone[node.row].add(node.index)
        self._changed.add(node.row)
        return node

    def _overlapping(self, partition: int, others: Iterable[int]) -> list[int]:
        mine = self.nodes[partition]
        return [
            each
            for each in others
            if mine.start < self.nodes[each].end and self.nodes[each].start < mine.end
        ]

    def _after(self, row: int, slices: Slices, log_starts: tuple[int, ...]) -> Slices:
        first = slices.first_partition
        ids = range(first, first + len(slices.starts))
        nodes = [self.nodes.get(each) for each in ids]
        originals = slices.parents or ((),) * len(nodes)
        parents = tuple(
            () if node is None or each in self._cut else known
            for each, node, known in zip(ids, nodes, originals, strict=True)
        )
        inherited = tuple(
            () if node is None else tuple(each for each in node.parents if each not in known)
            for node, known in zip(nodes, originals, strict=True)
        )
        children = tuple(() if each is None else tuple(each.children) for each in nodes)
        return replace(
            slices,
            parents=parents if any(parents) else (),
            children=children if slices.sealed_ends else (),
            log_starts=log_starts,
            gone=tuple(sorted({*slices.gone, *self._gone[row]})),
            inherited=inherited if any(inherited) else (),
        )


def _replace(links: list[int], gone: int, others: Iterable[int]) -> None:
    """Put the others in the place of the one that is gone, each once."""
    place = links.index(gone)
    links[place : place + 1] = [each for each in others if each not in links]
