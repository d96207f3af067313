"""Which broker is asked: the one that leads, as soon as another has said who does."""

import json
from dataclasses import replace

import pytest

from tailrace.errors import ConnectionFailedError
from tailrace.protocol.group_requests import (
    commit_request,
    goodbye_request,
    poll_request,
    register_request,
)
from tailrace.protocol.requests import (
    PRODUCER_ID_HEADER,
    Answer,
    Request,
    produce_records_request,
    produce_request,
)
from tailrace.sansio.contact import Contact
from tailrace.sansio.leaders import (
    HOPS_MAX,
    RESOURCES_MAX,
    Leaders,
    at_address_of,
    leader_urls,
    merged,
)
from tailrace.values import PartitionOffsets
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE

A, B, C = "http://a:9250", "http://b:9250", "http://c:9260"
READ = Request("GET", "/v1/topic/t/partitions/3/records?offset=5")
READ_ON = Request("GET", "/v1/topic/t/partitions/3/records?offset=9&maxRecords=1")
OTHER = Request("GET", "/v1/topic/t/partitions/30/records")
TOPICS = Request("GET", "/v1/topics")
DONE = Answer(200, {}, b"")


def leaders_of(url: str, *others: str) -> Leaders:
    contact = Contact(url)
    contact.learn(others)
    return Leaders(contact)


def misdirected(leader_url: object = None) -> Answer:
    document = {} if leader_url is None else {"leaderUrl": leader_url}
    return Answer(421, {}, json.dumps(document).encode())


def lost(*, write_attempted: bool = False) -> ConnectionFailedError:
    return ConnectionFailedError("http://x", "reset", write_attempted=write_attempted)


def row(partition: int, **known: object) -> PartitionOffsets:
    members: dict[str, object] = {
        "topic": "t",
        "partition": partition,
        "range_id": 0,
        "epoch": 1,
        "first_offset": 0,
        "log_start": None,
        "high_watermark": None,
        "log_end": None,
        "state": "open",
        "parents": (),
    }
    return PartitionOffsets(**{**members, **known})  # type: ignore[arg-type]


def test_what_no_answer_was_about_is_asked_of_the_broker_that_was_given() -> None:
    hops = leaders_of(A).hops(READ)

    assert hops.url == A
    assert not hops.go_on(DONE)


def test_brokers_are_asked_to_name_the_leader_until_the_last_that_forwards() -> None:
    hops = leaders_of(A).hops(READ)
    for url in (B, C, B)[:HOPS_MAX]:
        assert hops.request == Request(READ.method, READ.target, {"Tailrace-Redirect": "1"})
        assert hops.go_on(misdirected(url))

    assert hops.request == READ
    assert not hops.go_on(DONE)
    assert leaders_of(A).hops(TOPICS).request == TOPICS
    encoded = produce_records_request("t", b"body")  # of several partitions: brokers forward it
    assert leaders_of(A).hops(encoded).request == encoded


def test_who_is_named_is_asked_and_the_next_time_asked_first() -> None:
    leaders = leaders_of(A)
    hops = leaders.hops(READ)

    assert hops.go_on(misdirected(B))
    assert hops.url == B
    assert not hops.go_on(DONE)
    assert leaders.hops(READ_ON).url == B
    assert leaders.hops(OTHER).url == leaders.hops(TOPICS).url == A


def test_the_answer_of_a_leader_says_what_a_broker_before_it_created() -> None:
    hops = leaders_of(A).hops(READ)

    assert hops.go_on(Answer(421, {}, json.dumps({"leaderUrl": B, "topicCreated": True}).encode()))
    assert hops.go_on(misdirected(C))
    assert hops.outcome(DONE) == Answer(200, {}, b"", topic_created=True)
    assert leaders_of(A).hops(READ).outcome(DONE) == DONE


def test_a_leader_that_leads_no_more_names_the_next_one() -> None:
    leaders = leaders_of(A)
    leaders.hops(READ).go_on(misdirected(B))
    hops = leaders.hops(READ)

    assert hops.go_on(misdirected(C))
    assert hops.url == C
    assert leaders.hops(READ).url == C


def test_one_that_knows_no_leader_sends_back_to_the_broker_that_was_given() -> None:
    leaders = leaders_of(A)
    leaders.hops(READ).go_on(misdirected(B))
    hops = leaders.hops(READ)

    assert hops.go_on(misdirected())
    assert hops.url == A
    assert not hops.go_on(misdirected())
    assert leaders.hops(READ).url == A


@pytest.mark.parametrize("body", [b"", b"[]", b'{"leaderUrl": 5}', b'{"leaderUrl": "nowhere"}'])
def test_an_answer_that_names_nobody_is_the_answer(body: bytes) -> None:
    assert not leaders_of(A).hops(READ).go_on(Answer(421, {}, body))


def test_what_a_deposed_leader_wrote_is_sent_to_the_next_one_if_that_stores_it_once() -> None:
    written = json.dumps({"leaderUrl": B, "writeAttempted": True}).encode()
    plain = produce_request("t", b"1", content_type=JSON_CONTENT_TYPE, key="k")
    numbered = replace(plain, headers={**plain.headers, PRODUCER_ID_HEADER: "ab" * 16})

    hops = leaders_of(A).hops(plain)
    assert not hops.go_on(Answer(421, {}, written))
    hops = leaders_of(A).hops(numbered)
    assert hops.go_on(Answer(421, {}, written))
    assert hops.url == B


def test_what_a_deposed_leader_wrote_may_be_stored_whatever_comes_of_the_next_one() -> None:
    written = json.dumps({"leaderUrl": B, "writeAttempted": True}).encode()
    plain = produce_request("t", b"1", content_type=JSON_CONTENT_TYPE, key="k")
    numbered = replace(plain, headers={**plain.headers, PRODUCER_ID_HEADER: "ab" * 16})
    hops = leaders_of(A).hops(numbered)
    hops.go_on(Answer(421, {}, written))
    unled = Answer(503, {}, b"{}")
    away, none = lost(), lost()

    assert hops.outcome(unled) == replace(unled, write_attempted=True)
    assert hops.go_around(away)
    assert not hops.go_around(none)
    assert none.write_attempted


def test_a_commit_whose_answer_was_lost_may_be_stored_whatever_the_next_one_says() -> None:
    hops = leaders_of(A, B).hops(commit_request("c1", delivery=5))
    unled = Answer(503, {}, b"{}")

    assert hops.go_around(lost(write_attempted=True))
    assert hops.outcome(unled) == replace(unled, write_attempted=True)


def test_brokers_that_name_each_other_are_not_asked_for_ever() -> None:
    hops = leaders_of(A).hops(TOPICS)
    asked = 0
    while hops.go_on(misdirected(B if hops.url == A else A)):
        asked += 1

    assert asked == HOPS_MAX


def test_a_leader_that_is_away_is_gone_around_and_forgotten() -> None:
    leaders = leaders_of(A)
    leaders.hops(READ).go_on(misdirected(B))
    leaders.hops(OTHER).go_on(misdirected(C))
    hops = leaders.hops(READ)

    assert hops.go_around(lost())
    assert hops.url == A
    assert leaders.hops(READ).url == A
    assert leaders.hops(OTHER).url == C


def test_what_may_have_been_done_is_not_asked_of_another() -> None:
    leaders = leaders_of(A)
    leaders.hops(READ).go_on(misdirected(B))

    assert not leaders.hops(READ).go_around(lost(write_attempted=True))


def test_when_the_one_that_was_just_named_is_away_the_broker_before_forwards() -> None:
    hops = leaders_of(A).hops(READ)
    hops.go_on(misdirected(B))

    assert hops.go_around(lost())
    assert (hops.url, hops.request) == (A, READ)
    assert not hops.go_around(lost())


def test_each_broker_that_is_known_is_asked_once_when_others_are_away() -> None:
    leaders = leaders_of(A, B, C)
    hops = leaders.hops(TOPICS)
    asked = [hops.url]
    while hops.go_around(lost()):
        asked.append(hops.url)

    assert asked == [A, B, C]
    assert leaders.hops(TOPICS).url == A


def test_who_was_named_before_takes_the_place_of_the_broker_that_was_given() -> None:
    leaders = leaders_of(A)
    leaders.hops(READ).go_on(misdirected(B))

    assert leaders.hops(TOPICS).go_around(lost())
    assert leaders.hops(TOPICS).url == B


@pytest.mark.parametrize(
    ("request_", "is_repeated"),
    [
        (poll_request("c1", delivery=0), True),
        (commit_request("c1", delivery=5), True),
        (register_request("c1", "g1", ["t"]), True),
        (poll_request("c1"), False),
        (commit_request("c1"), False),
        (goodbye_request("c1", delivery=5), False),
        (produce_request("t", b"1", content_type=JSON_CONTENT_TYPE), False),
    ],
)
def test_what_does_the_same_twice_is_asked_of_another_after_a_lost_answer(
    request_: Request, *, is_repeated: bool
) -> None:
    leaders = leaders_of(A, B)

    assert leaders.hops(request_).go_around(lost(write_attempted=True)) is is_repeated
    assert leaders.hops(request_).url == B


def test_events_of_one_key_have_a_place_and_records_with_a_key_each_have_none() -> None:
    leaders = leaders_of(A)
    key = produce_request("t", b"1", content_type=JSON_CONTENT_TYPE, key="k")
    nameless = produce_request("t", b"1", content_type=NDJSON_CONTENT_TYPE)
    named = produce_request(
        "t", b"1", content_type=NDJSON_CONTENT_TYPE, producer_id="p", sequence=1
    )
    many = produce_records_request("t", b"", producer_id="p", sequence=1)
    for request in (key, named, many):
        leaders.hops(request).go_on(misdirected(B))

    assert [leaders.hops(each).url for each in (key, named)] == [B, B]
    assert [leaders.hops(each).url for each in (nameless, many)] == [A, A]


def test_so_many_places_are_remembered_and_no_more() -> None:
    leaders = leaders_of(A)
    for partition in range(RESOURCES_MAX + 1):
        request = Request("GET", f"/v1/topic/t/partitions/{partition}/records")
        leaders.hops(request).go_on(misdirected(B))

    assert leaders.hops(request).url == B
    assert leaders.hops(Request("GET", "/v1/topic/t/partitions/0/records")).url == A


@pytest.mark.parametrize(
    ("url", "reported", "reached"),
    [
        (A, "http://b:9260", "http://b:9260"),
        ("https://a", "http://b:9260", "https://b:9260"),
        (A, "http://[::1]:9260", "http://[::1]:9260"),
        (A, "http://b", None),
        (A, "http://b:x", None),
        (A, "", None),
    ],
)
def test_a_broker_is_reached_as_the_client_reaches_brokers(
    url: str, reported: str, reached: str | None
) -> None:
    assert at_address_of(url, reported) == reached


def test_leaders_are_asked_for_ends_that_the_broker_did_not_get() -> None:
    rows = [
        row(0, log_start=0, high_watermark=5, log_end=5, leader=0),
        row(1, leader=1, leader_url=C),
        row(2, leader=1, leader_url=C),
        row(3, leader=2, leader_url=B),
        row(4),
        row(6, log_start=0, high_watermark=5, log_end=5, leader=2, leader_url="http://d:1"),
        row(5, leader=0, leader_url="nowhere"),
    ]

    assert leader_urls(A, rows) == [B, C]


def test_a_listing_has_what_the_leader_says_of_partitions_without_ends() -> None:
    ends = {"log_start": 0, "high_watermark": 5, "log_end": 5}
    whole = row(0, **ends, leader=0)
    asked_by_broker = row(4, **ends, leader=2, leader_url=B)
    known = {"log_start": 2, "high_watermark": 7, "log_end": 8, "leader": 1}
    listing = [
        whole,
        row(1, leader=1, leader_url=C),
        row(2, leader=2, leader_url=B),
        row(3),
        asked_by_broker,
    ]
    theirs = [row(0, leader=0, leader_url=A), row(1, **known), row(2, leader=2, leader_url=B)]

    assert merged(listing, [theirs]) == [
        whole,
        row(1, **known, leader_url=C),
        row(2, leader=2, leader_url=B, state="unreachable"),
        row(3),
        asked_by_broker,
    ]


@pytest.mark.parametrize("state", ["sealed", "damaged", "waiting", "leaderless"])
def test_what_a_broker_says_of_a_partition_without_a_leader_stays(state: str) -> None:
    reported = row(1, leader=1, leader_url=C, state=state)

    assert merged([reported], []) == [reported]
