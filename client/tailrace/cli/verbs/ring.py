"""`tailrace ring` and `tailrace metadata`: what a ring has committed, and what is done to it by
hand. What changes it needs its secret, when it has one: TAILRACE_TOKEN.
"""

from typing import TYPE_CHECKING, Any

from tailrace.cli.lib.options import DRY_RUN, OUTPUT, URL, connect
from tailrace.cli.lib.parser import UsageError, Verb, parameter, whole_number
from tailrace.cli.lib.remedies import with_url

if TYPE_CHECKING:
    from tailrace.cli.lib.output import Column
    from tailrace.protocol.ring_values import AcceptedLoss, LastStep, RingDetails, RingStep

BROKERS_MAX = 12288  # of the largest ring (docs/ring.md)


def status(*, consistent: bool, output: str, url: str | None) -> None:
    """Show the ring's committed state: brokers, ranges, who leads, who votes.

    As the broker knows it that is asked, also one that is in no ring yet; LAG as the leaders do:
    follower:records, and since when it owes them. ISR names a ghost with its cause: 1?power; of
    a sealed range, who has a whole copy. A broker beside the ring is a spare, or has left. Below,
    the tokens from left to right: who leads them, and the sealed ranges by their ids.
    """
    from tailrace.cli.lib.output import show
    from tailrace.cli.lib.ring_rows import with_lags
    from tailrace.values import to_document

    with connect(url) as client:
        ring = with_lags(client, client.ring(consistent=consistent))
    show(output, to_document(ring), with_url(ring_text(ring), url))


def history(*, output: str, url: str | None) -> None:
    """Show the last changes of leaders, in-sync replicas, ghosts and registrations.

    As the broker that is asked applied them, by its clock, since its start; 1,000 at most.
    """
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    with connect(url) as client:
        changes = client.ring_history()
    lines = [f"{change.at}  {change.text}" for change in changes]
    none = "no change since this broker was started"
    show(output, {"changes": list(map(to_document, changes))}, "\n".join(lines) or none)


def found(*, brokers: int, output: str, url: str | None) -> None:
    """Found a ring of brokers that run, and are empty; safe to repeat."""
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    with connect(url) as client:
        ring = client.found(brokers)
    show(output, to_document(ring), f"✓ ring of {ring.brokers}: {ring.cluster_id}")


def accept_loss(*, range_id: int, broker: int, dry_run: bool, output: str, url: str | None) -> None:
    """Let a broker lead a range of which no whole replica is left; others' events are lost.

    Of a sealed range the broker's copy counts as whole, and others are made from it; of one with a
    single copy the damaged offsets are given up. With --dry-run it only says what is lost. Before
    it, try to bring back a broker that has the events: `tailrace ring status` names them.
    """
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    with connect(url) as client:
        accepted = client.accept_loss(range_id, broker, dry_run=dry_run)
    show(output, to_document(accepted), accepted_text(accepted, broker))


def accepted_text(accepted: "AcceptedLoss", broker: int) -> str:
    """Return the text that people read."""
    warnings = [
        f"  broker {each} has all of it and is fenced: if it runs, stop it first; what it "
        "acknowledges until then is lost"
        for each in accepted.fenced
        if accepted.dry_run
    ]
    return "\n".join([_accepted_text(accepted, broker), *warnings])


def _accepted_text(accepted: "AcceptedLoss", broker: int) -> str:
    after, dry_run = accepted.range, accepted.dry_run
    is_sealed = after.state == "sealed"
    if is_sealed or accepted.lost:
        said = "would give up what" if dry_run else "✓ what"
        says = f"range {after.id}{', sealed' * is_sealed}: {said} broker {broker} lacks"
        gone = "" if dry_run else " is given up"
        lost = [
            f"  {each.topic}, partition {each.partition}: offsets {each.first_offset} to "
            f"{each.last_offset}"
            for each in accepted.lost
        ]
        return "\n".join([f"{says}{gone}:", *(lost or ["  nothing"])])
    if dry_run:
        return (
            f"range {after.id}: broker {broker} would lead it in epoch {after.epoch + 1}; what "
            "others alone have would be lost"
        )
    leader = "no broker yet" if after.leader is None else f"broker {after.leader}"
    return f"✓ range {after.id}: led by {leader} in epoch {after.epoch}"


def recover(*, accept_loss: bool, output: str, url: str | None) -> None:
    """Let a voter go on alone when most of them are lost for good.

    Ask the voter with the highest HEIGHT: what only the lost ones knew to be committed is gone.
    They must never come back with their old disks.
    """
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    if not accept_loss:
        raise UsageError(
            "what only the lost voters knew is gone then: add --accept-loss if they are lost for "
            "good. See: tailrace metadata recover --help"
        )
    with connect(url) as client:
        ring = client.recover_metadata(accept_loss=True)
    voters = ", ".join(map(str, ring.metadata.voters))
    line = f"✓ metadata goes on with voter {voters}, term {ring.metadata.term}"
    show(output, to_document(ring), line)


def ring_text(ring: "RingDetails") -> str:
    """Return the text that people read."""
    from tailrace.cli.lib.output import as_table
    from tailrace.cli.lib.ring_drawing import ring_drawing
    from tailrace.values import to_document

    lines = [_headline(ring), _metadata_line(ring)]
    if ring.cluster_id is None:
        if ring.state == "waiting to be founded":
            lines.append("Found a ring: tailrace ring found --brokers N")
        return "\n".join(lines)
    document = to_document(ring)
    lines.append(as_table(document["registrations"], _broker_columns(ring)))
    lines.append(as_table(document["ranges"], _range_columns()))
    lines += ring_drawing(ring)
    if ring.step is not None:
        lines.append(_step_line(ring.step))
    return "\n".join([*lines, *_last_step_lines(ring), *waiting_lines(ring)])


def _last_step_lines(ring: "RingDetails") -> list[str]:
    last = ring.last_step
    if last is None:
        return []
    name = f"last step {last.id}: {last.kind}{_size(last)}"
    if last.cancelled is not None:
        return [f"{name}, cancelled: {last.cancelled}"]
    took = "" if last.duration_ms is None else f", {last.duration_ms} ms"
    pause = "" if last.pause_ms is None else f", paused {last.pause_ms} ms"
    return [f"{name}{took}{pause}"]


def _step_line(step: "RingStep") -> str:
    age = "" if step.age_ms is None else f" for {step.age_ms:,} ms"
    return (
        f"step {step.id}: {step.kind}{_size(step)}, {len(step.sealed)} of {len(step.parents)} "
        f"ranges sealed, {step.phase}{age}"
    )


def _size(step: "RingStep | LastStep") -> str:
    before, after = step.brokers_before, step.brokers_after
    return "" if before == after else f" from {before} to {after} brokers"


def waiting_lines(ring: "RingDetails") -> list[str]:
    """What to do for each range that waits."""
    return [
        f"range {range_.id} waits for its broker with all its data; without it: tailrace ring "
        f"accept-loss {range_.id} --broker N"
        for range_ in ring.ranges
        if range_.state == "waiting"
    ]


def _headline(ring: "RingDetails") -> str:
    if ring.cluster_id is None:
        return f"RING {ring.name}   this broker is {ring.state}"
    own = [one for one in ring.registrations if one.ordinal < (ring.brokers or 0)]
    return "   ".join(
        [
            f"RING {ring.name}",
            f"brokers {sum(one.alive for one in own)}/{ring.brokers}",
            f"ranges {sum(range_.state != 'sealed' for range_ in ring.ranges)}",
            f"copies {ring.copies}",
            *([] if ring.state == "member" else [f"this broker is {ring.state}"]),
        ]
    )


def _metadata_line(ring: "RingDetails") -> str:
    metadata = ring.metadata
    leader = "none" if metadata.leader is None else metadata.leader
    voters = ",".join(map(str, metadata.voters)) or "none"
    parts = [f"metadata leader {leader} (term {metadata.term})", f"voters {voters}"]
    if metadata.next_voters:
        parts.append(f"next voters {','.join(map(str, metadata.next_voters))}")
    if metadata.applied is not None:
        parts.append(f"height {metadata.applied} of {metadata.height}")
    return "   ".join(parts)


def _broker_columns(ring: "RingDetails") -> "list[Column]":
    from tailrace.cli.lib.output import Column, member
    from tailrace.cli.lib.ring_rows import held_outside
    from tailrace.cli.verbs.status import short_incarnation

    outside = held_outside(ring)

    def state(broker: dict[str, Any]) -> str:
        if broker["fenced"]:
            return "fenced"
        if not broker["alive"]:
            return "down"
        held = outside.get(broker["ordinal"])
        return "alive" if held is None else "left" if held else "spare"

    return [
        member("BROKER", "ordinal"),
        member("REGISTRATION", "registration"),
        Column("INCARNATION", lambda broker: short_incarnation(broker["incarnation"])),
        member("BOOT", "boot"),
        member("LOSS", "loss"),
        Column("STATE", state),
        member("HEIGHT", "height"),
    ]


def _range_columns() -> "list[Column]":
    from tailrace.cli.lib.output import NONE, Column, member

    def token(name: str) -> Column:
        title = name.upper()
        # The sign has a place of its own, so that the digits are below each other.
        return Column(
            title, lambda one: one[name] if one[name].startswith("-") else f" {one[name]}"
        )

    def isr(one: dict[str, Any]) -> str:
        names = [
            f"{each['ordinal']}{'?' if each['ghost'] else ''}{each['cause'] or ''}"
            for each in one["isr"]
        ]
        return ",".join(names or map(str, one["complete"] or ())) or NONE

    def lag(one: dict[str, Any]) -> str:
        return ",".join(map(_lag, one["followers"] or ())) or NONE

    return [
        member("RANGE", "id"),
        token("start"),
        token("end"),
        member("EPOCH", "epoch"),
        member("LEADER", "leader"),
        Column("ISR", isr),
        member("REPLICAS", "replicas"),
        Column("LAG", lag),
        member("STATE", "state"),
    ]


def _lag(follower: dict[str, Any]) -> str:
    records, ms = follower["lagRecords"], follower["lagMs"]
    since = f"/{ms}ms" if ms else ""
    return f"{follower['ordinal']}:{'?' if records is None else records}{since}"


STATUS = Verb(
    status,
    (
        parameter(
            "--consistent",
            action="store_true",
            help="with all that was committed up to now; needs most of the voters",
        ),
        OUTPUT,
        URL,
    ),
    ("tailrace ring status", "tailrace ring status --consistent -o json"),
)
HISTORY = Verb(history, (OUTPUT, URL), ("tailrace ring history", "tailrace ring history -o json"))
FOUND = Verb(
    found,
    (
        parameter(
            "--brokers",
            metavar="N",
            type=whole_number(1, BROKERS_MAX),
            required=True,
            help="it begins with brokers 0 to N-1",
        ),
        OUTPUT,
        URL,
    ),
    ("TAILRACE_TOKEN=$(cat .tailrace/ring-secret) tailrace ring found --brokers 3",),
)
ACCEPT_LOSS = Verb(
    accept_loss,
    (
        parameter("range_id", metavar="RANGE", type=whole_number(0), help="the range's id"),
        parameter(
            "--broker",
            metavar="N",
            type=whole_number(0, BROKERS_MAX - 1),
            required=True,
            help="the broker that is to lead what it has, or whose copy is to count",
        ),
        DRY_RUN,
        OUTPUT,
        URL,
    ),
    (
        "tailrace ring accept-loss 1 --broker 1 --dry-run",
        "TAILRACE_TOKEN=$(cat .tailrace/ring-secret) tailrace ring accept-loss 1 --broker 1",
    ),
)
RECOVER = Verb(
    recover,
    (
        parameter(
            "--accept-loss",
            action="store_true",
            help="needed: most voters are lost for good, and what only they knew with them",
        ),
        OUTPUT,
        URL,
    ),
    (
        "TAILRACE_TOKEN=$(cat .tailrace/ring-secret) tailrace metadata recover --accept-loss "
        "--url http://127.0.0.1:9270",
    ),
)
