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
    count = account.event_count
    text = f"{counted(count, 'event')} {'is' if count == 1 else 'are'} stored"
    stored = sorted(account.stored_by_partition().items())
    if stored:
        text += f" ({', '.join(f'partition {partition}: {n:,}' for partition, n in stored)})"
    if account.is_settled:
        return f"{text}; the first {noun} that is not is {noun} {account.line}"
    last = account.line + len(account.under_way.lines) - 1
    return (
        f"{text}, and perhaps more of {noun}s {account.line} to {last}; the first {noun} that is "
        f"not known to be stored is {noun} {_first_missing(account, requests)}"
    )


def created_text(client: Client, topic: str) -> str:
    """Name the topic that a run has created."""
    partitions = ""
    with suppress(TailraceError):
        count = client.topic(topic).topic.partitions
        partitions = f" ({counted(count, 'partition')})"
    return f"created topic {topic}{partitions}"


def _first_missing(account: Account, requests: LineRequests) -> int:
    """Return the first line under way whose partition is not known to have stored it."""
    keys, stored = account.under_way.keys, account.stored_of_unsettled()
    with suppress(TailraceError), requests.client.twin(timeout_s=ASK_S_MAX) as client:
        placed = requests.partitions(client, [key for _, key in keys]) if stored else ()
        for (index, _), partition in zip(keys, placed, strict=False):
            if partition not in stored:
                return account.line + index
    return account.line
