"""`tailrace ring plan`, `grow`, `shrink` and `drain`: another number of brokers, step by step.

A step takes milliseconds, and copies nothing. What it waits for is said, and asked again after a
pause that doubles. What changes the ring needs its secret, when it has one: TAILRACE_TOKEN.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tailrace.cli.lib.options import DRY_RUN, OUTPUT, URL, connect, counted, size_text, target
from tailrace.cli.lib.parser import UsageError, Verb, parameter, whole_number
from tailrace.cli.verbs.dev import DATA
from tailrace.errors import ProblemError, TailraceError

if TYPE_CHECKING:
    from tailrace.protocol.ring_values import PlannedStep, RingPlan, StepResult
    from tailrace.sync import Client

BROKERS_MAX = 12288  # of the largest ring (docs/ring.md)
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0
RESTARTED_S_MAX = 60.0  # of a broker whose logs are read first


class Cost:
    """What the steps of one command have changed."""

    def __init__(self) -> None:
        self.steps: list[StepResult] = []

    def text(self) -> str:
        """In a line."""
        sealed = sum(len(step.sealed_ranges) for step in self.steps)
        new = sum(len(step.new_ranges) for step in self.steps)
        partitions = sum(step.new_partitions for step in self.steps)
        if not self.steps:
            return "no step"
        longest_ms = self._longest_pause_ms()
        pause = "" if longest_ms is None else f"; longest pause {longest_ms} ms"
        return (
            f"{counted(len(self.steps), 'step')}: {counted(sealed, 'range')} sealed, {new} new, "
            f"{counted(partitions, 'new partition')}{pause}; 0 bytes copied by steps"
        )

    def document(self) -> dict[str, Any]:
        """Return the document that programs read."""
        from tailrace.values import to_document

        return {
            "steps": list(map(to_document, self.steps)),
            "longestStepMs": max((step.duration_ms for step in self.steps), default=0),
            "longestPauseMs": self._longest_pause_ms(),
        }

    def _longest_pause_ms(self) -> int | None:
        """Return the longest pause of appends; None: it is known of no step."""
        known = [step.pause_ms for step in self.steps if step.pause_ms is not None]
        return max(known, default=None)


class Copies:
    """What has to be copied before brokers can go: sealed ranges, by range and broker.

    `sizes`: bytes by range, as far as they are known.
    """

    def __init__(self, client: "Client", sizes: Mapping[int, int]) -> None:
        self._client = client
        self._sizes = sizes
        self._wanted = self._missing()

    def text(self) -> str:
        """Return how much of it is copied."""
        if not self._wanted:
            return "nothing to copy"
        left = self._missing()
        done = [each for each in self._wanted if each not in left]
        counts = f"{len(done)} of {counted(len(self._wanted), 'range')} copied"
        sizes = self._sizes
        if not all(each in sizes for each, _ in self._wanted):
            return counts
        size, whole = (sum(sizes[each] for each, _ in some) for some in (done, self._wanted))
        return f"{counts}, {size_text(size)} of {size_text(whole)}" if whole else counts

    def note(self) -> str:
        """What is still to be copied, and who waits for it; empty: nothing."""
        if not self._missing():
            return ""
        return f"; in the background: {self.text()}"

    def document(self) -> dict[str, Any]:
        """Return the document that programs read."""
        known = [self._sizes.get(each) for each, _ in self._wanted]
        return {
            "copies": [{"range": each, "broker": broker} for each, broker in self._wanted],
            "copyBytes": sum(each or 0 for each in known),
            "copiesUnknown": known.count(None),
        }

    def _missing(self) -> list[tuple[int, int]]:
        return [
            (each.id, ordinal)
            for each in self._client.ring(consistent=True).ranges
            if each.complete is not None
            for ordinal in each.replicas
            if ordinal not in each.complete
        ]


def plan(*, brokers: int, output: str, url: str | None) -> None:
    """Show the steps in which the ring would come to N brokers; nothing is changed.

    `copies` names who has to copy which sealed range after a step; the last line says how much that
    is now, as far as the broker knows that is asked.
    """
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    with connect(url) as client:
        planned = client.ring_plan(brokers)
        text = plan_text(planned) + _notes(client, planned)
    show(output, to_document(planned), text)


def grow(*, brokers: int | None, dry_run: bool, data: Path, output: str, url: str | None) -> None:
    """Have the ring grow to N brokers, one more without N; they must run.

    Each step splits a range in two, for the new broker. No event is copied: what is stored stays
    where it is. Producers wait some milliseconds; readers and groups go on in order. The brokers
    of a ring of `tailrace dev` are started by it.
    """
    with _connect(url, data) as client:
        now = _size(client)
        wanted = now + 1 if brokers is None else brokers
        if wanted < now:
            raise UsageError(f"the ring has {now} brokers; to have fewer: tailrace ring shrink")
        if not dry_run:
            _start_missing(client, data, wanted)
    with _connect(url, data) as client:  # a broker that ran alone has a secret now
        _resize(client, wanted, dry_run=dry_run, output=output)


def shrink(*, brokers: int | None, dry_run: bool, data: Path, output: str, url: str | None) -> None:
    """Have the ring shrink to N brokers, one fewer without N; the last ones leave.

    They take no more events, and hold what was sealed until others have copied it: let them go
    with tailrace ring drain.
    """
    with _connect(url, data) as client:
        now = _size(client)
        wanted = now - 1 if brokers is None else brokers
        if wanted > now:
            raise UsageError(f"the ring has {now} brokers; to have more: tailrace ring grow")
        if wanted < 1:
            raise UsageError("the ring has one broker, and cannot do with fewer")
        sizes = {} if dry_run else _copy_sizes(client, wanted)
        _resize(client, wanted, dry_run=dry_run, output=output, sizes=sizes)


def drain(*, brokers: int | None, dry_run: bool, data: Path, output: str, url: str | None) -> None:
    """Have the ring shrink to N brokers, and let those go that have left, when nothing is lost.

    It waits until others have whole copies of all that they hold. Their disks can never come back
    to the ring. Without N only those go that have left before.
    """
    from tailrace.cli.lib.output import show

    with _connect(url, data) as client:
        now = _size(client)
        wanted = now if brokers is None else brokers
        if wanted > now:
            raise UsageError(f"the ring has {now} brokers; to have more: tailrace ring grow")
        if dry_run:
            _show_plan(client, wanted, output, retired=sorted(_outside(client, wanted)))
            return
        sizes = _copy_sizes(client, wanted)
        cost = _steps_to(client, wanted, output)
        copies = Copies(client, sizes)
        gone, waiting = [], Waits()
        for ordinal in sorted(_outside(client, wanted), reverse=True):
            _retire(client, ordinal, copies, waiting)
            gone.append(ordinal)
        document = {"brokers": wanted, "retired": gone, **cost.document(), **copies.document()}
        names = ", ".join(map(str, gone)) or "none"
        line = f"✓ ring of {wanted}; brokers gone for good: {names}; {cost.text()}"
        show(output, document, f"{line}; {copies.text()}")


def _connect(url: str | None, data: Path) -> "Client":
    """As other verbs; to a ring of `tailrace dev` with its secret, unless another is given."""
    from tailrace.local.member import kept_secret, local_count
    from tailrace.sync import Client

    chosen = target(url)
    if chosen.token is None and local_count(data, chosen.url) is not None:
        return Client(chosen.url, token=kept_secret(data))
    return connect(url)


def _start_missing(client: "Client", data: Path, wanted: int) -> None:
    """Have `tailrace dev` start them, if it runs this ring."""
    from tailrace.local.member import is_alone, local_count
    from tailrace.local.ring import ask_for

    registered = {each.ordinal: each for each in client.ring(consistent=True).registrations}
    missing = [ordinal for ordinal in range(wanted) if ordinal not in registered]
    names = ", ".join(map(str, missing))
    if not missing:
        return
    if local_count(data, client.url) is None:
        sys.stderr.write(
            f"start broker {names}; a ring of tailrace dev does, when --data names its directory\n"
        )
        return
    was_alone = is_alone(data)
    if not ask_for(data, wanted):
        sys.stderr.write(f"start broker {names}: no tailrace dev runs in {data}\n")
        return
    sys.stderr.write(f"tailrace dev starts broker {names}\n")
    if was_alone:
        sys.stderr.write("first it starts broker 0 again, which has listened to no others\n")
        _wait_registered(client, data, registered[0].registration)


def _wait_registered(client: "Client", data: Path, before: int) -> None:
    """Wait until broker 0 is there as another process. TailraceError: it is not soon."""
    from tailrace.errors import ConnectionFailedError
    from tailrace.local.member import is_alone

    for _ in range(round(RESTARTED_S_MAX / PAUSE_S_MIN)):
        with suppress(ConnectionFailedError):
            known = client.ring().registrations
            if not is_alone(data) and any(each.registration > before for each in known):
                return
        time.sleep(PAUSE_S_MIN)
    raise TailraceError(
        f"broker 0 was not started again within {RESTARTED_S_MAX:.0f} s: see what tailrace dev "
        f"prints, and {data / '0.log'}; then repeat this"
    )


def _copy_sizes(client: "Client", wanted: int) -> dict[int, int]:
    """Bytes of what the plan has copied, by range, as far as the broker knows."""
    with suppress(ProblemError):  # of too many steps there is no plan
        copies = [copy for step in client.ring_plan(wanted).steps for copy in step.copies]
        return {copy.range_id: copy.bytes for copy in copies if copy.bytes is not None}
    return {}


def _resize(
    client: "Client", wanted: int, *, dry_run: bool, output: str, sizes: Mapping[int, int] = {}
) -> None:
    """`sizes`: of the sealed ranges that others copy afterwards."""
    from tailrace.cli.lib.output import show

    if dry_run:
        _show_plan(client, wanted, output)
        return
    cost = _steps_to(client, wanted, output)
    copies = Copies(client, sizes)
    document = {"brokers": wanted, **cost.document(), **copies.document()}
    text = f"✓ ring of {wanted}; {cost.text()}{copies.note()}"
    left = ", ".join(map(str, sorted(_outside(client, wanted))))
    show(output, document, text + f"\nbroker {left} can go: tailrace ring drain" * bool(left))


def _show_plan(client: "Client", wanted: int, output: str, *, retired: Sequence[int] = ()) -> None:
    """`retired`: who would then be let go for good."""
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    planned = client.ring_plan(wanted)
    document = {**to_document(planned), **({"retired": list(retired)} if retired else {})}
    gone = f"\ngone for good then: broker {', '.join(map(str, retired))}" if retired else ""
    show(output, document, plan_text(planned) + _notes(client, planned) + gone)


def _notes(client: "Client", planned: "RingPlan") -> str:
    """Lines of what a step costs producers, as the last one did, and of what it ends for good."""
    last = client.ring().last_step
    lines = [*_deleted_notes(client)] if planned.steps else []
    if last is not None and last.pause_ms is not None:
        lines.insert(0, f"the last step held appends for {last.pause_ms} ms")
    return "".join(f"\n{line}" for line in lines)


def _deleted_notes(client: "Client") -> Iterator[str]:
    names = ", ".join(each.name for each in client.deleted_topics())
    if names:
        yield f"deleted topics cannot be restored after a step: {names}"


def _steps_to(client: "Client", wanted: int, output: str) -> Cost:
    """Step by step; whoever takes steps beside this is no hindrance."""
    cost = Cost()
    waiting = Waits()
    if _size(client) != wanted:
        sys.stderr.writelines(f"{line}\n" for line in _deleted_notes(client))
    while (now := _size(client)) != wanted:
        kind: Literal["grow", "shrink"] = "grow" if now < wanted else "shrink"
        try:
            step = client.step(kind, now)
        except ProblemError as error:
            if error.members.get("reason") == "stale-broker-count":
                continue  # it was taken, and its answer was lost
            waiting.pause(error)
            continue
        waiting.restart()
        cost.steps.append(step)
        if output == "table":
            print(step_text(step), flush=True)
    return cost


def _retire(client: "Client", ordinal: int, copies: Copies, waiting: "Waits") -> None:
    waiting.restart()
    while True:
        try:
            client.retire(ordinal)
        except ProblemError as error:
            if error.members.get("reason") == "broker-not-found":
                return  # it was retired, and the answer was lost
            waiting.pause(error, f"; {copies.text()}")
        else:
            return


def _size(client: "Client") -> int:
    """UsageError: the broker is in no ring."""
    brokers = client.ring(consistent=True).brokers
    if brokers is None:
        raise UsageError("this broker is in no ring yet. See: tailrace ring status")
    return brokers


def _outside(client: "Client", brokers: int) -> Iterator[int]:
    ordinals = (each.ordinal for each in client.ring(consistent=True).registrations)
    return (each for each in ordinals if each >= brokers)


class Waits:
    """Says what a command waits for when that changes, and waits, longer each time."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S_MIN
        self._said = ""

    def restart(self) -> None:
        """Begin with short pauses again; what was said last is not said again."""
        self._pause_s = PAUSE_S_MIN

    def pause(self, error: ProblemError, more: str = "") -> None:
        """Raise what another try cannot help. `more`: how far what is waited for is."""
        if not error.retriable:
            raise error
        said = f"waiting: {error.detail}{more}"
        if said != self._said:
            self._said = said
            sys.stderr.write(f"{said}\n")
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


# --- what people read -----------------------------------------------------------------------------


def step_text(step: "StepResult") -> str:
    """A line for each step."""
    sealed, new = (", ".join(map(str, each)) for each in (step.sealed_ranges, step.new_ranges))
    return (
        f"step {step.step}: {step.kind}, ring of {step.brokers}; ranges {sealed} → {new}, "
        f"{counted(step.new_partitions, 'new partition')}, {step.duration_ms} ms"
        + ("" if step.pause_ms is None else f", paused {step.pause_ms} ms")
    )


def plan_text(planned: "RingPlan") -> str:
    """A line for each step, and one for all."""
    lines = [_planned_text(step) for step in planned.steps]
    if not lines:
        return f"the ring has {planned.brokers} brokers; no step is needed"
    steps = planned.steps
    split = sum(step.kind == "split" for step in steps)
    joined = len(steps) - split
    continued = sum(step.continued is not None for step in steps)
    changed = [f"{split} split"] * bool(split) + [f"{joined} joined"] * bool(joined)
    unknown = f" and {planned.copies_unknown} of unknown size" if planned.copies_unknown else ""
    lines.append(
        f"{counted(len(steps), 'step')}: {', '.join(changed)}, {continued} continued; "
        f"{counted(planned.new_partitions, 'new partition')} in "
        f"{counted(planned.topics, 'topic')}; {size_text(planned.copy_bytes)}{unknown} to copy"
    )
    if planned.missing:
        lines.append(f"start first: broker {', '.join(map(str, planned.missing))}")
    return "\n".join(lines)


def _planned_text(step: "PlannedStep") -> str:
    sealed = ", ".join(str(each.id) for each in step.sealed_ranges)
    new = ", ".join(f"{each.id} (leader {each.leader})" for each in step.new_ranges)
    copies = ", ".join(f"range {each.range_id} to {each.broker}" for each in step.copies)
    return (
        f"{step.brokers_before} → {step.brokers_after}  {step.kind}  ranges {sealed} → {new}  "
        f"{counted(step.new_partitions, 'new partition')}" + (f"  copies: {copies}" * bool(copies))
    )


def _brokers(**settings: Any) -> Any:
    return parameter(
        "--brokers",
        metavar="N",
        type=whole_number(1, BROKERS_MAX),
        help="how many brokers the ring is to have",
        **settings,
    )


_SIZE = _brokers()
PLAN = Verb(
    plan,
    (_brokers(required=True), OUTPUT, URL),
    ("tailrace ring plan --brokers 6",),
)
_OPTIONS = (_SIZE, DRY_RUN, DATA, OUTPUT, URL)
GROW = Verb(grow, _OPTIONS, ("tailrace ring grow", "tailrace ring grow --brokers 6 --dry-run"))
SHRINK = Verb(shrink, _OPTIONS, ("tailrace ring shrink --brokers 3",))
DRAIN = Verb(drain, _OPTIONS, ("tailrace ring drain --brokers 3",))
