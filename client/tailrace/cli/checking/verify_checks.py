"""The checks of `tailrace ring verify`: whether a ring is as it is to be, by what it has committed
and by what each of its brokers answers. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tailrace.cli.checking.check import FAILED, OK, WARNING, Check
from tailrace.cli.checking.damage_checks import start_or_accept
from tailrace.cli.lib.options import counted
from tailrace.protocol.ring_values import RangeDetails, Registration, RingDetails

FIRST_TOKEN, LAST_TOKEN = -(2**63), 2**63 - 1
STEP_MS_MAX = 10_000  # one that is as it is to be takes milliseconds, and is cancelled after 2 s
HEIGHTS_APART_MAX = 100  # changes that a broker may lack when it is asked after the others
COPIES_MAX = 3

# What each broker of the ring answered; None: nothing.
Answers = Mapping[int, RingDetails | None]


def verify_checks(ring: RingDetails, answers: Answers) -> list[Check]:
    """One check of each kind that is well, and one for each thing that is not.

    `ring`: all that is committed. `answers`: empty when the brokers cannot be distinguished.
    """
    assert ring.brokers is not None
    opened = [each for each in ring.ranges if each.state != "sealed"]
    sealed = [each for each in ring.ranges if each.state == "sealed"]
    known = {each.ordinal: each for each in ring.registrations}
    full = min(COPIES_MAX, ring.copies)
    groups: tuple[tuple[str, str, Iterable[str]], ...] = (
        ("brokers", f"{ring.brokers} answer", _of_brokers(ring, known, answers)),
        ("tokens", "each has one owner", _of_tokens(opened)),
        (
            "ranges",
            f"{len(opened)} with a leader and {counted(ring.copies, 'replica')} in sync",
            _of_open(opened, known),
        ),
        (
            "sealed ranges",
            f"{len(sealed)}, whole on {counted(full, 'broker')}",
            _of_sealed(sealed, full),
        ),
        ("step", "none has been open for long", _of_step(ring, answers)),
        ("metadata", f"all are near height {ring.metadata.applied}", _of_heights(ring, answers)),
    )
    checks: list[Check] = []
    for name, well, findings in groups:
        failed = [Check(FAILED, name, each) for each in findings]
        checks += failed or [Check(OK, name, well)]
    if not answers and ring.brokers > 1:
        checks.append(
            Check(WARNING, "brokers", "only one was asked: it cannot say where the others are")
        )
    return checks


def not_agreed_check(detail: str) -> Check:
    """Return the check that fails when the voters could not say what is committed."""
    return Check(
        FAILED,
        "metadata",
        f"{detail}; start the voters that are away (tailrace ring status names them): what "
        "follows is what one broker knows",
    )


def _of_brokers(
    ring: RingDetails, known: Mapping[int, Registration], answers: Answers
) -> Iterator[str]:
    assert ring.brokers is not None
    for ordinal in range(ring.brokers):
        registration = known.get(ordinal)
        if registration is None:
            yield f"broker {ordinal} is not registered: start it"
        elif not registration.alive or registration.fenced:
            yield f"broker {ordinal} is down: start it"
        elif ordinal not in answers:
            continue
        elif (answer := answers[ordinal]) is None:
            yield f"broker {ordinal} does not answer here, but the others hear it: see its log"
        elif answer.cluster_id != ring.cluster_id:
            yield f"broker {ordinal} is of another ring ({answer.cluster_id}): see its settings"


def _of_tokens(opened: Sequence[RangeDetails]) -> Iterator[str]:
    """Find tokens that no open range has, or that two have."""
    remedy = "keep all disks as they are, and report this"
    end, before = FIRST_TOKEN, "nothing"
    for each in sorted(opened, key=lambda each: int(each.start)):
        start = int(each.start)
        if start > end:
            yield f"no range has tokens {end} to {start - 1}: {remedy}"
        elif start < end:
            yield (
                f"tokens {start} to {min(end, int(each.end)) - 1} are of range {before} and of "
                f"range {each.id}: {remedy}"
            )
        if int(each.end) > end:
            end, before = int(each.end), str(each.id)
    if end <= LAST_TOKEN:
        yield f"no range has tokens {end} to {LAST_TOKEN}: {remedy}"


def _of_open(opened: Iterable[RangeDetails], known: Mapping[int, Registration]) -> Iterator[str]:
    for each in opened:
        if each.state == "waiting":
            yield f"no broker can lead range {each.id}: {start_or_accept(each)}"
            continue
        if each.leader is None or each.state == "leaderless":
            yield f"no broker leads range {each.id}: a replica takes over soon; ask again"
        in_sync = {one.ordinal for one in each.isr if not one.ghost}
        missing = [one for one in each.replicas if one not in in_sync]
        away = [one for one in each.isr if not one.ghost and not _is_there(known.get(one.ordinal))]
        behind = sorted({*missing, *(one.ordinal for one in away)})
        for ordinal in behind:
            remedy = (
                "LAG of tailrace ring status says how much it lacks"
                if _is_there(known.get(ordinal))
                else "start it"
            )
            yield f"broker {ordinal} is not in sync in range {each.id}: {remedy}"


def _of_sealed(sealed: Iterable[RangeDetails], full: int) -> Iterator[str]:
    for each in sealed:
        complete = each.complete or ()
        if len(complete) >= full:
            continue
        if complete:
            missing = ", ".join(str(one) for one in each.replicas if one not in complete)
            yield (
                f"range {each.id} has {len(complete)} of {full} complete copies: broker {missing} "
                "copies it when it runs; watch ISR in tailrace ring status"
            )
        else:
            yield f"range {each.id} has no complete copy: {start_or_accept(each)}"


def _of_step(ring: RingDetails, answers: Answers) -> Iterator[str]:
    """Find a step that hangs: each broker says for how long it has known it."""
    step = ring.step
    if step is None:
        return
    known = [ring, *(each for each in answers.values() if each is not None)]
    ages = [
        each.step.age_ms or 0 for each in known if each.step is not None and each.step.id == step.id
    ]
    if max(ages) > STEP_MS_MAX:
        left = ", ".join(str(each) for each in step.parents if each not in step.sealed)
        yield (
            f"step {step.id} ({step.kind}, {step.brokers_before} → {step.brokers_after} brokers) "
            f"has been open for {max(ages) // 1000} s, for the leaders of ranges {left}: see the "
            "logs of those brokers (tailrace ring status names them)"
        )


def _of_heights(ring: RingDetails, answers: Answers) -> Iterator[str]:
    """Find brokers far behind `ring`, after which they were asked."""
    if ring.metadata.leader is None:
        yield "no leader is known: start most of the voters"
    height = ring.metadata.applied or 0
    for ordinal, answer in sorted(answers.items()):
        if answer is None or answer.cluster_id != ring.cluster_id:
            continue
        applied = answer.metadata.applied or 0
        if height - applied > HEIGHTS_APART_MAX:
            yield (
                f"broker {ordinal} has applied up to height {applied} of {height}: see its log, "
                "and the network to port base + 5"
            )


def _is_there(registration: Registration | None) -> bool:
    return registration is not None and registration.alive and not registration.fenced
