"""What `tailrace produce` says of a run: the events that are stored, and the first that is not."""

from contextlib import suppress

from tailrace.cli.lib.options import counted
from tailrace.cli.producing.account import Account
from tailrace.cli.producing.requests import LineRequests
from tailrace.errors import TailraceError
from tailrace.sync import Client

# Of asking, when a run has failed, which lines belong to the partitions that are not stored.
ASK_S_MAX = 5.0


def summary(account: Account, requests: LineRequests, *, noun: str) -> str:
    """Name what is stored, and the first line that is not; `noun`: line or event."""
    text = _stored_text(account, noun)
    if not account.doubtful_count:
        return f"{text}; the first {noun} that is not is {noun} {account.line}"
    last = account.line + account.doubtful_count - 1
    return (
        f"{text}, and perhaps more of {noun}s {account.line} to {last}; the first {noun} that is "
        f"not known to be stored is {noun} {_first_missing(account, requests)}"
    )


def resumed_text(account: Account, sent: str) -> str:
    """Name what a resumed run has come to at the end of its input; `sent`: by this run."""
    count = account.event_count + account.earlier_count
    all_stored = f"all {counted(count, 'event')} of the input are stored"
    if not account.event_count:
        return f"{all_stored}, and were before"
    return f"{sent}; {all_stored}"


def created_text(client: Client, topic: str) -> str:
    """Name the topic that a run has created."""
    partitions = ""
    with suppress(TailraceError):
        count = client.topic(topic).topic.open_partitions
        partitions = f" ({counted(count, 'partition')})"
    return f"created topic {topic}{partitions}"


def _stored_text(account: Account, noun: str) -> str:
    replay = account.replay
    if replay is not None and not replay.is_done:
        return f"nothing was sent; every {noun} before {noun} {account.line} is stored"
    count = account.event_count + account.earlier_count
    text = f"{counted(count, 'event')} {'is' if count == 1 else 'are'} stored"
    parts = sorted(account.stored_by_partition().items())
    by_partition = ", ".join(f"partition {partition}: {n:,}" for partition, n in parts)
    if replay is not None:
        own = f"{account.event_count:,}" if parts else "none"
        text += f", {own} of them by this run"
    return f"{text} ({by_partition})" if parts else text


def exists(client: Client, topic: str) -> bool:
    """Whether a broker knows the topic."""
    with suppress(TailraceError):
        client.topic(topic)
        return True
    return False


def _first_missing(account: Account, requests: LineRequests) -> int:
    """Return the first line under way whose partition is not known to have stored it."""
    keys, stored = account.under_way.keys, account.stored_of_unsettled()
    with suppress(TailraceError), requests.client.twin(timeout_s=ASK_S_MAX) as client:
        placed = requests.partitions(client, [key for _, key in keys]) if stored else ()
        for (index, _), partition in zip(keys, placed, strict=False):
            if partition not in stored:
                return account.line + index
    return account.line
