"""`tailrace status`: the ring in one line, and a line a broker."""

from typing import TYPE_CHECKING, Any

from tailrace.cli.lib.options import OUTPUT, URL, connect, short_size
from tailrace.cli.lib.parser import Verb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.cli.lib.output import Column
    from tailrace.values import RingStatus

INCARNATION_CHARACTERS = 4  # distinguishes disks; the whole is in -o json


def status(*, output: str, url: str | None) -> None:
    """Show the ring and its brokers.

    UP of a broker that does not answer here: away, or down when the others do not hear it either;
    spare, or left: it runs beside the ring, as a line below says.
    """
    from tailrace.cli.lib.output import as_table, show
    from tailrace.cli.lib.ring_rows import filled_in, held_outside
    from tailrace.values import to_document

    with connect(url) as client:
        ring = filled_in(client, client.brokers())
        is_larger = len(ring.brokers) > ring.length
        outside = held_outside(client.ring()) if is_larger else {}
    document = to_document(ring)
    table = as_table(document["brokers"], _columns(outside))
    lines = [
        headline(ring),
        table,
        *copies_note(ring),
        *(outside_note(*each) for each in outside.items()),
    ]
    show(output, document, "\n".join(lines))


def outside_note(ordinal: int, ranges: "Sequence[int]") -> str:
    """What becomes of a broker beside the ring."""
    if not ranges:
        return (
            f"broker {ordinal} holds nothing: it can join (tailrace ring grow), or go for good "
            "(tailrace ring drain)"
        )
    names = ", ".join(map(str, ranges))
    noun = "range" if len(ranges) == 1 else "ranges"
    return (
        f"broker {ordinal} has left the ring, and holds {noun} {names} until others have whole "
        "copies: tailrace ring drain waits for that"
    )


def headline(status: "RingStatus") -> str:
    """What holds for all brokers together."""
    ring = status.ring
    own = [broker for broker in status.brokers if broker.ordinal < status.length]
    leader = "none" if ring.metadata_leader is None else ring.metadata_leader
    return "   ".join(
        [
            f"RING {ring.name}",
            f"brokers {sum(broker.alive for broker in own)}/{status.length}",
            f"ranges {ring.ranges}",
            f"copies {ring.copies}",
            f"under-replicated {ring.under_replicated}",
            f"metadata leader {leader} (term {ring.metadata_term})",
            f"version {ring.version}",
        ]
    )


def copies_note(status: "RingStatus") -> list[str]:
    """What one copy means where there are brokers for more."""
    if status.ring.copies > 1 or status.length == 1:
        return []
    return ["copies 1: each event is on one broker, and cannot be read while that one is away"]


def short_incarnation(incarnation: str | None) -> str:
    """Enough of it to distinguish two disks."""
    from tailrace.cli.lib.output import NONE

    return NONE if incarnation is None else incarnation[:INCARNATION_CHARACTERS]


def _columns(outside: "Mapping[int, Sequence[int]]") -> "list[Column]":
    from tailrace.cli.lib.output import Column, member, short_duration

    def token(broker: dict[str, str]) -> str:
        # The sign has a place of its own, so that the digits are below each other.
        return broker["token"] if broker["token"].startswith("-") else f" {broker['token']}"

    def up(broker: dict[str, Any]) -> str:
        """Only a broker itself knows since when it runs."""
        if broker["upSeconds"] is not None:
            return short_duration(broker["upSeconds"])
        if not broker["alive"]:
            return "down"
        held = outside.get(broker["ordinal"])
        return "away" if held is None else "left" if held else "spare"

    return [
        member("BROKER", "ordinal"),
        Column("TOKEN", token),
        member("LEADS", "leads"),
        member("REPLICATES", "replicates"),
        Column("DISK", _disk),
        member("LAG MAX", "lagMax"),
        member("DIRECT I/O", "directIo"),
        Column("INCARNATION", lambda broker: short_incarnation(broker["incarnation"])),
        Column("UP", up),
    ]


def _disk(broker: dict[str, Any]) -> str:
    """What the broker's own data takes of it."""
    data_bytes, all_bytes = broker["dataBytes"], broker["diskBytes"]
    if data_bytes is None or all_bytes is None:
        return "?"
    return f"{short_size(data_bytes)} of {short_size(all_bytes)}"


VERB = Verb(status, (OUTPUT, URL), ("tailrace status", "tailrace status -o yaml"))
