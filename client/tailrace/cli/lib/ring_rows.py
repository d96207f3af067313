"""The ring's brokers, each as it describes itself where it can be reached."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.protocol.ring_values import RingDetails
    from tailrace.sync import Client
    from tailrace.values import BrokerStatus, RingStatus

Answered = TypeVar("Answered")

ANSWER_S_MAX = 2.0
ASKED_AT_ONCE = 16


def filled_in(client: "Client", status: "RingStatus") -> "RingStatus":
    """What the client's broker said of the ring, with what the others say of themselves."""
    missing = [broker.ordinal for broker in status.brokers if not is_own(broker)]
    if not missing:
        return status
    from tailrace.sansio.routing import broker_urls

    urls = broker_urls(client.url, status)
    answers = _of_each(client, {each: urls[each] for each in missing if each in urls}, _own_row)
    rows = tuple(answers.get(broker.ordinal, broker) for broker in status.brokers)
    return replace(status, brokers=rows)


def with_lags(client: "Client", ring: "RingDetails") -> "RingDetails":
    """The ring as the client's broker knows it, with what the other leaders say of followers."""
    others = {each.leader for each in ring.ranges if each.followers is None} - {None}
    if not others:
        return ring
    from tailrace.sansio.routing import broker_urls

    try:
        urls = broker_urls(client.url, client.brokers())
    except TailraceError:  # it is not ready
        return ring
    asked = {each: urls[each] for each in others if each is not None and each in urls}
    answers = _of_each(client, asked, lambda other, _: other.ring().ranges)
    known = {
        (each.id, each.epoch): each
        for ranges in answers.values()
        for each in ranges
        if each.followers is not None
    }
    ranges = (known.get((each.id, each.epoch), each) for each in ring.ranges)
    return replace(ring, ranges=tuple(ranges))


def ring_of_each(client: "Client", ordinals: Iterable[int]) -> "dict[int, RingDetails | None]":
    """The ring as each of these brokers knows it; None: it does not answer.

    Empty when they cannot be distinguished, or the client's broker is not ready.
    """
    from tailrace.sansio.routing import broker_urls

    try:
        urls = broker_urls(client.url, client.brokers())
    except TailraceError:
        return {}
    asked = {each: urls[each] for each in ordinals if each in urls}
    answers = _of_each(client, asked, lambda other, _: other.ring())
    return {each: answers.get(each) for each in asked}


def held_outside(ring: "RingDetails") -> dict[int, list[int]]:
    """By registered broker that does not belong to the ring: the sealed ranges that it holds, or
    is to.
    """
    return {
        each.ordinal: [
            one.id for one in ring.ranges if each.ordinal in (*one.replicas, *(one.complete or ()))
        ]
        for each in ring.registrations
        if each.ordinal >= (ring.brokers or 0)
    }


def is_own(broker: "BrokerStatus") -> bool:
    """It has described itself."""
    return broker.up_seconds is not None


def _own_row(other: "Client", ordinal: int) -> "BrokerStatus | None":
    brokers = other.brokers().brokers
    return next((each for each in brokers if each.ordinal == ordinal and is_own(each)), None)


def _of_each(
    client: "Client", urls: Mapping[int, str], ask: "Callable[[Client, int], Answered | None]"
) -> "dict[int, Answered]":
    """What brokers answer, by ordinal; of those that answer soon."""
    from concurrent.futures import ThreadPoolExecutor

    def answer(ordinal: int) -> "Answered | None":
        with client.twin(urls[ordinal], timeout_s=ANSWER_S_MAX) as other:
            try:
                return ask(other, ordinal)
            except TailraceError:
                return None

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = zip(urls, pool.map(answer, urls), strict=True)
        return {ordinal: found for ordinal, found in answers if found is not None}
