"""Which parent had the tokens of a partition that has several, so that its producers can be told.

A request may bring events for two partitions that have one child. Its parts have the same producer
and sequence; in the child they are told from each other by an id that names the parent as well. A
partition with one parent takes over its ids as they are.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from tailrace_broker.core.ring.arithmetic import find_slice
from tailrace_broker.model.topic import Partition, Topic

# The partitions that a token has come through, each of them one of several parents of the next.
Links = tuple[int, ...]


class Origins(NamedTuple):
    """Of a partition: `links[i]` for tokens from `starts[i]` on."""

    starts: tuple[int, ...]
    links: tuple[Links, ...]

    def of(self, token: int) -> Links:
        """Return whence a token has come."""
        return self.links[find_slice(self.starts, token)]


def comes_through_several(topic: Topic, child: Partition) -> bool:
    """Whether a partition has tokens of several parents, as far as it is known.

    Of an only parent that is gone the parent may be named beside it: that has all of the tokens.
    """
    there = [each for each in map(topic.find, child.parents) if each is not None]
    return len(child.parents) > 1 and not (
        len(there) == 1
        and there[0].token_start <= child.token_start
        and child.token_end <= there[0].token_end
    )


def origins_of(topic: Topic) -> Mapping[int, Origins]:
    """By partition, where it or an ancestor has several parents."""
    if not any(len(each.parents) > 1 for each in topic.partitions):
        return {}
    pieces: dict[int, list[tuple[int, int, Links]]] = {}
    for each in topic.partitions:  # a parent's id is below those of its children
        bounds = each.token_start, each.token_end
        missing = [parent for parent in each.parents if parent not in pieces]
        # Of a parent that is gone, the tokens are those that no other one had.
        is_of_several = comes_through_several(topic, each)
        way: Links = (missing[0],) if len(missing) == 1 and is_of_several else ()
        found = [(*bounds, way)]
        for parent in sorted({*each.parents} & pieces.keys()):  # the latest counts
            for start, end, links in _as_parent(pieces[parent], parent, is_of_several):
                found = _with_piece(found, max(start, bounds[0]), min(end, bounds[1]), links)
        pieces[each.partition] = _merged(found)
    return {
        partition: Origins(tuple(each[0] for each in found), tuple(each[2] for each in found))
        for partition, found in pieces.items()
        if any(links for _, _, links in found)
    }


def _as_parent(
    pieces: list[tuple[int, int, Links]], parent: int, is_of_several: bool
) -> Iterator[tuple[int, int, Links]]:
    for start, end, links in pieces:
        yield start, end, (*links, parent) if is_of_several else links


def _with_piece(
    pieces: list[tuple[int, int, Links]], start: int, end: int, links: Links
) -> list[tuple[int, int, Links]]:
    """The pieces, in token order, with `[start, end)` as it is here."""
    if start >= end:
        return pieces
    before = [(a, min(b, start), way) for a, b, way in pieces if a < start]
    after = [(max(a, end), b, way) for a, b, way in pieces if b > end]
    return [*before, (start, end, links), *after]


def _merged(pieces: list[tuple[int, int, Links]]) -> list[tuple[int, int, Links]]:
    """Neighbours that have come the same way are one."""
    runs = [list(run) for _, run in groupby(pieces, key=itemgetter(2))]
    return [(run[0][0], run[-1][1], run[0][2]) for run in runs]
