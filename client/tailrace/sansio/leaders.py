"""Sans-IO: which broker of a ring a request is asked of, by what brokers answered.

A partition is served by the broker that leads it. Others forward, unless the request asks them not
to: then they answer 421 and name the leader; it is then asked, and asked first when the same is
wanted again. So each request saves the hop between brokers. What no answer was about goes to the
URL that was given, or to another broker that is known when that one is away.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlsplit

from tailrace.errors import ConnectionFailedError
from tailrace.protocol.requests import (
    DELIVERY_HEADER,
    PRODUCER_ID_HEADER,
    REDIRECT_HEADER,
    Answer,
    Request,
)
from tailrace.sansio.contact import Contact
from tailrace.values import PartitionDetails, PartitionOffsets
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE

Row = TypeVar("Row", PartitionOffsets, PartitionDetails)

# A leader may go while it is looked for; the answer is then that of the last.
HOPS_MAX = 3
# More are forgotten, and cost a hop again.
RESOURCES_MAX = 10_000
_MISDIRECTED = 421
# Produced so, events go to the partition of one key, or else of the producer's name.
_OF_ONE_KEY = (JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE)
# What one broker leads.
_PARTITION = re.compile(r"/v1/topic/[^/?]+/partitions/[0-9]+/records(?=[?]|$)")
_REGISTER, _GOODBYE = "/v1/consumer/register", "/v1/consumer/goodbye"


class Leaders:
    """What a client knows of who leads; `contact`: whom to ask else."""

    def __init__(self, contact: Contact) -> None:
        self.contact = contact
        self._url_by_resource: dict[str, str] = {}

    def hops(self, request: Request) -> "Hops":
        """Whom to ask, one after the other."""
        return Hops(self, request)

    def url_of(self, resource: str | None) -> str:
        """Whom to ask first."""
        known = None if resource is None else self._url_by_resource.get(resource)
        return known or self.contact.url

    def remember(self, resource: str | None, url: str | None) -> None:
        """Who leads this; None: it is not known any more."""
        if url is not None:
            self.contact.learn([url])
        if resource is None:
            return
        self._url_by_resource.pop(resource, None)
        if url is not None:
            if len(self._url_by_resource) >= RESOURCES_MAX:
                self._url_by_resource.clear()
            self._url_by_resource[resource] = url

    def forget(self, url: str) -> None:
        """It cannot be reached: another knows who leads now."""
        self.contact.turn_from(url)
        for resource in [key for key, known in self._url_by_resource.items() if known == url]:
            del self._url_by_resource[resource]


class Hops:
    """Of one request. `url`: whom to ask now."""

    def __init__(self, leaders: Leaders, request: Request) -> None:
        self._resource = _resource(request)
        self.url = leaders.url_of(self._resource)
        self._leaders = leaders
        self._request = request
        self._count = 0
        self._unreachable: set[str] = set()
        self._has_created = self._may_be_done = False

    @property
    def request(self) -> Request:
        """What to send. Who does not lead shall name the leader; the last one asked forwards."""
        if self._count == HOPS_MAX:
            headers = dict(self._request.headers)
            headers.pop(REDIRECT_HEADER, None)
            return replace(self._request, headers=headers)
        return self._request if self._resource is None else redirected(self._request)

    def go_on(self, answer: Answer) -> bool:
        """Whether another broker is to be asked; else this is the answer."""
        if answer.status != _MISDIRECTED or self._count == HOPS_MAX:
            return False
        if _member(answer, "writeAttempted") is True and not _is_stored_once(self._request):
            return False  # its leader was deposed as it wrote: the next one may have it
        self._may_be_done = self._may_be_done or _member(answer, "writeAttempted") is True
        contact = self._leaders.contact
        asked, leader_url = self.url, _leader_url(contact.given, answer)
        self._has_created = self._has_created or _member(answer, "topicCreated") is True
        self._leaders.remember(self._resource, leader_url)
        self._count += 1
        self.url = leader_url or contact.url
        return self.url != asked

    def outcome(self, answer: Answer) -> Answer:
        """The last answer, with what a broker before it did, or may have done."""
        if not (self._has_created or self._may_be_done):
            return answer
        return replace(answer, topic_created=self._has_created, write_attempted=self._may_be_done)

    def go_around(self, error: ConnectionFailedError) -> bool:
        """Whether another broker is to be asked; else this is the outcome."""
        self._unreachable.add(self.url)
        self._leaders.forget(self.url)
        is_at_risk = error.write_attempted and not _is_repeatable(self._request)
        self._may_be_done = self._may_be_done or error.write_attempted
        error.write_attempted = self._may_be_done
        if is_at_risk:  # perhaps it is done
            return False
        if self._count:  # who was named is away: the next one forwards, to whoever leads then
            self._count = HOPS_MAX
        self.url = self._leaders.contact.url
        return self.url not in self._unreachable


def _leader_url(url: str, answer: Answer) -> str | None:
    leader_url = _member(answer, "leaderUrl")
    return at_address_of(url, leader_url) if isinstance(leader_url, str) else None


def _member(answer: Answer, name: str) -> object:
    """Of a problem document; None: it has no such member, or is none."""
    with suppress(ValueError, AttributeError):
        return json.loads(answer.body).get(name)
    return None


def at_address_of(url: str, leader_url: str) -> str | None:
    """Return the host and port of `leader_url` under the scheme by which this client connects.

    None: it is no broker's URL.
    """
    with suppress(ValueError):
        parts = urlsplit(leader_url)
        if parts.hostname and parts.port is not None:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            return f"{urlsplit(url).scheme}://{host}:{parts.port}"
    return None


def leader_urls(url: str, rows: Iterable[PartitionOffsets | PartitionDetails]) -> list[str]:
    """Of the leaders that the broker that listed these partitions did not reach itself."""
    urls = {row.leader_url for row in rows if row.leader_url is not None and _has_no_ends(row)}
    reachable = {at_address_of(url, leader_url) for leader_url in sorted(urls)} - {url}
    return sorted(leader_url for leader_url in reachable if leader_url is not None)


def merged(rows: Iterable[Row], others: Iterable[Iterable[Row]]) -> list[Row]:
    """The same partitions; those without ends as their leader describes them, where that was
    reached.
    """
    known = {
        _key(each): each
        for other in others
        for each in other
        if each.leader is not None and each.leader_url is None
    }
    return [_merged(row, known.get(_key(row))) for row in rows]


def _merged(row: Row, known: Row | None) -> Row:
    """`known`: as its leader describes it."""
    if row.leader_url is None or not _has_no_ends(row):
        return row
    if known is not None:
        return replace(known, leader_url=row.leader_url)
    return replace(row, state="unreachable") if row.state == "open" else row


def _has_no_ends(row: PartitionOffsets | PartitionDetails) -> bool:
    return row.high_watermark is None


def _key(row: PartitionOffsets | PartitionDetails) -> tuple[str, int]:
    return getattr(row, "topic", ""), row.partition


def redirected(request: Request) -> Request:
    """Return the request so that a broker that does not lead says so, and forwards nothing."""
    return replace(request, headers={**request.headers, REDIRECT_HEADER: "1"})


def _is_stored_once(request: Request) -> bool:
    """Whether the leaders know it again by its producer id and its sequence."""
    return PRODUCER_ID_HEADER in request.headers


def _is_repeatable(request: Request) -> bool:
    """Whether it does the same once more: a registration, and what names its delivery."""
    if DELIVERY_HEADER in request.headers:
        return not request.target.startswith(_GOODBYE)
    return request.target == _REGISTER


def _resource(request: Request) -> str | None:
    """What of a request says who leads it; the same text, the same leader."""
    if match_ := _PARTITION.match(request.target):
        return match_[0]
    if request.headers.get("Content-Type") in _OF_ONE_KEY and "/messages" in request.target:
        return request.target + request.headers.get(PRODUCER_ID_HEADER, "")
    return None
