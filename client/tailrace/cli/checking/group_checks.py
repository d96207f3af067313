"""The check of consumer groups in `tailrace doctor`: which of them lag, and by how long."""

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter

from tailrace.cli.checking.check import FAILED, OK, WARNING, Check, shown_names
from tailrace.cli.lib.options import counted
from tailrace.cli.lib.output import short_duration
from tailrace.errors import TailraceError
from tailrace.protocol.group_values import GroupInfo
from tailrace.sync import Client

# Age of the oldest record that a group has not read; a reader that works is seconds behind.
UNREAD_S_MAX = 300.0


def group_checks(client: Client, *, now_us: int) -> list[Check]:
    """Of all groups. `now_us`: by the broker's clock."""
    try:
        groups = client.groups()
    except TailraceError as error:
        return [Check(FAILED, "groups", str(error))]
    return [lag_check(groups, now_us=now_us), *loss_checks(groups)]


def lag_check(groups: Sequence[GroupInfo], *, now_us: int) -> Check:
    """A warning like "1 group lags 2h: billing (1,204 events unread, no consumers)", or OK."""
    if not groups:
        return Check(OK, "groups", "none")
    ages_s = [(_unread_s(group.oldest_unread, now_us), group) for group in groups]
    late = [(age_s, group) for age_s, group in ages_s if age_s > UNREAD_S_MAX]
    late.sort(key=itemgetter(0), reverse=True)
    if not late:
        return Check(OK, "groups", f"{counted(len(groups), 'group')}, none lags")
    longest = short_duration(late[0][0])
    lags = "1 group lags" if len(late) == 1 else f"{len(late)} groups lag up to"
    names = shown_names([_description(group) for _, group in late])
    return Check(
        WARNING,
        "groups",
        f"{lags} {longest}: {names}: start what reads, or forget the group: tailrace group delete",
    )


def loss_checks(groups: Sequence[GroupInfo]) -> list[Check]:
    """A warning like "1 group lost 2 records to retention or damage: billing"; none: none did."""
    losers = sorted((group for group in groups if group.lost), key=lambda each: -each.lost)
    if not losers:
        return []
    lost = counted(sum(loser.lost for loser in losers), "record")
    names = shown_names([loser.group for loser in losers])
    return [
        Check(
            WARNING,
            "retention",
            f"{counted(len(losers), 'group')} lost {lost} to retention or damage: {names}: keep "
            "records for longer (tailrace topic alter), or start what reads sooner",
        )
    ]


def _unread_s(oldest_unread: str | None, now_us: int) -> float:
    """0 when all is read, or the record is newer than the broker's clock."""
    if oldest_unread is None:
        return 0.0
    appended = datetime.fromisoformat(oldest_unread)
    now = datetime.fromtimestamp(now_us / 1_000_000, UTC)
    return max(0.0, (now - appended).total_seconds())


def _description(group: GroupInfo) -> str:
    lag = "unread events" if group.lag is None else f"{counted(group.lag, 'event')} unread"
    readers = {"idle": "no consumers", "active": counted(group.members, "consumer")}
    return f"{group.group} ({lag}, {readers.get(group.state, group.state)})"
