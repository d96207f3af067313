"""What `tailrace doctor` says of consumer groups: which of them lag, and by how long."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tailrace.cli.checking.check import FAILED, OK, WARNING, Check
from tailrace.cli.lib.options import counted
from tailrace.cli.verbs.status import short_duration
from tailrace.errors import ProblemError, TailraceError
from tailrace.protocol.group_values import GroupInfo
from tailrace.sync import Client

# The oldest record that a group has not read; what works reads within seconds.
UNREAD_S_MAX = 300.0
NAMES_SHOWN_MAX = 3


class _Late(NamedTuple):
    """A group, and the age of the oldest record that it has not read."""

    group: GroupInfo
    unread_s: float


def group_checks(client: Client, *, now_us: int) -> list[Check]:
    """Of all groups; none where the ring has none yet. `now_us`: by the broker's clock."""
    try:
        groups = client.groups()
    except ProblemError as error:
        return [] if error.type == "not-supported" else [Check(FAILED, "groups", str(error))]
    except TailraceError as error:
        return [Check(FAILED, "groups", str(error))]
    return [groups_check(groups, now_us=now_us)]


def groups_check(groups: Sequence[GroupInfo], *, now_us: int) -> Check:
    """ "1 group lags 2h: billing (1,204 events unread, no consumers)", or that none lags."""
    if not groups:
        return Check(OK, "groups", "none")
    late = [
        _Late(group, _unread_s(group.oldest_unread, now_us))
        for group in groups
        if group.oldest_unread is not None
    ]
    late = sorted(
        (each for each in late if each.unread_s > UNREAD_S_MAX),
        key=lambda each: each.unread_s,
        reverse=True,
    )
    if not late:
        return Check(OK, "groups", f"{counted(len(groups), 'group')}, none lags")
    longest = short_duration(late[0].unread_s)
    lags = "1 group lags" if len(late) == 1 else f"{len(late)} groups lag up to"
    names = ", ".join(_description(each.group) for each in late[:NAMES_SHOWN_MAX])
    others = f" and {len(late) - NAMES_SHOWN_MAX} more" if len(late) > NAMES_SHOWN_MAX else ""
    return Check(
        WARNING,
        "groups",
        f"{lags} {longest}: {names}{others}: start what reads, or forget the group: "
        "tailrace group delete",
    )


def _unread_s(oldest_unread: str, now_us: int) -> float:
    """0 when the record is newer than the broker's clock."""
    appended = datetime.fromisoformat(oldest_unread)
    now = datetime.fromtimestamp(now_us / 1_000_000, UTC)
    return max(0.0, (now - appended).total_seconds())


def _description(group: GroupInfo) -> str:
    lag = "unread events" if group.lag is None else f"{counted(group.lag, 'event')} unread"
    readers = {"idle": "no consumers", "active": counted(group.members, "consumer")}
    return f"{group.group} ({lag}, {readers.get(group.state, group.state)})"
