"""The ring's brokers, each as it describes itself where it can be reached."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.sync import Client
    from tailrace.values import BrokerStatus, RingStatus

ANSWER_S_MAX = 2.0
ASKED_AT_ONCE = 16


def filled_in(client: "Client", status: "RingStatus") -> "RingStatus":
    """What the client's broker said of the ring, with what the others say of themselves."""
    missing = [broker.ordinal for broker in status.brokers if not is_own(broker)]
    if not missing:
        return status
    from tailrace.sansio.routing import broker_urls

    urls = broker_urls(client.url, status)
    answers = _own_rows(client, {each: urls[each] for each in missing if each in urls})
    rows = tuple(answers.get(broker.ordinal, broker) for broker in status.brokers)
    return replace(status, brokers=rows)


def is_own(broker: "BrokerStatus") -> bool:
    """It has described itself."""
    return broker.up_seconds is not None


def _own_rows(client: "Client", urls: Mapping[int, str]) -> "dict[int, BrokerStatus]":
    """Of those that answer soon."""
    from concurrent.futures import ThreadPoolExecutor

    def row(ordinal: int) -> "BrokerStatus | None":
        with client.twin(urls[ordinal], timeout_s=ANSWER_S_MAX) as other:
            try:
                brokers = other.brokers().brokers
            except TailraceError:
                return None
        matching = (broker for broker in brokers if broker.ordinal == ordinal and is_own(broker))
        return next(matching, None)

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        rows = zip(urls, pool.map(row, urls), strict=True)
        return {ordinal: found for ordinal, found in rows if found is not None}
