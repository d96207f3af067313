"""Requests of consumers and groups are built, and answers read, as docs/protocol.md says."""

import json

import pytest

from tailrace.errors import (
    ConsumerNotRegisteredError,
    GroupKindError,
    GroupNotFoundError,
    GroupNotIdleError,
    ProblemError,
    StaleAssignmentError,
    StaleDeliveryError,
    UnexpectedAnswerError,
)
from tailrace.protocol import group_requests
from tailrace.protocol.group_values import (
    GroupConsumer,
    GroupDetails,
    GroupInfo,
    GroupPartition,
    GroupReset,
    MovedPartition,
    Polled,
    Registered,
    TopicPartition,
)
from tailrace.protocol.requests import Answer, Request
from tailrace.values import to_document
from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tests.support.storage.batches import TIME_US

GROUP: dict[str, object] = {
    "group": "g1",
    "state": "active",
    "members": 1,
    "topics": ["flights"],
    "lag": 3,
    "oldestUnread": "2026-11-21T10:09:23.114502Z",
    "lost": 0,
}
INFO = GroupInfo("g1", "active", 1, ("flights",), 3, "2026-11-21T10:09:23.114502Z", 0)
CONSUMER: dict[str, object] = {
    "consumerId": "c1",
    "topics": ["flights"],
    "onNewGroup": "startFromLatest",
    "sessionMs": 30_000,
    "idleMs": 12,
    "partitions": [{"topic": "flights", "partition": 3}],
}
PARTITION: dict[str, object] = {
    "topic": "flights",
    "partition": 3,
    "consumer": "c1",
    "position": 7,
    "committed": 6,
    "logStart": 0,
    "highWatermark": 10,
    "lag": 3,
    "state": "open",
    "oldestUnread": None,
    "lost": 0,
}
NUMBERED = {"tailrace-delivery": "41", "tailrace-assignment-epoch": "2"}


def answer(document: object, *, status: int = 200) -> Answer:
    return Answer(status, {}, json.dumps(document).encode())


def body_of(request: Request) -> object:
    assert request.headers["Content-Type"] == JSON_CONTENT_TYPE
    return json.loads(request.body)


def test_a_registration_has_what_is_given() -> None:
    least = group_requests.register_request("c1", "g1", ["flights"])
    most = group_requests.register_request(
        "c1", "g1", ("a", "b"), on_new_group="startFromEarliest", session_ms=5000
    )

    assert (least.method, least.target) == ("POST", "/v1/consumer/register")
    assert body_of(least) == {"id": "c1", "group": "g1", "topics": ["flights"]}
    assert body_of(most) == {
        "id": "c1",
        "group": "g1",
        "topics": ["a", "b"],
        "onNewGroup": "startFromEarliest",
        "sessionMs": 5000,
    }
    assert "Tailrace-Assignment-Epoch" not in most.headers


def test_a_heartbeat_names_the_epoch_that_it_knows() -> None:
    request = group_requests.register_request("c1", "g1", ["flights"], assignment_epoch=4)

    assert request.headers == {
        "Content-Type": "application/json",
        "Tailrace-Assignment-Epoch": "4",
    }
    assert body_of(request) == {"id": "c1", "group": "g1", "topics": ["flights"]}


def test_a_registered_consumer_is_reported() -> None:
    document = {
        "consumerId": "c1",
        "group": "g1",
        "topics": ["flights"],
        "onNewGroup": "startFromLatest",
        "sessionMs": 120_000,
        "assignmentEpoch": 3,
    }

    assert group_requests.parse_registered(answer(document)) == Registered(
        "c1", "g1", ("flights",), "startFromLatest", 120_000, 3
    )


def test_a_poll_names_what_is_given() -> None:
    least = group_requests.poll_request("c 1/&")
    most = group_requests.poll_request(
        "c1",
        delivery=0,
        assignment_epoch=2,
        form="ndjson",
        max_records=10,
        max_bytes=4096,
        wait_ms=0,
    )

    assert least == Request(
        "POST", "/v1/consumer/poll?consumerId=c+1%2F%26", {"Accept": BATCH_CONTENT_TYPE}
    )
    assert most == Request(
        "POST",
        "/v1/consumer/poll?consumerId=c1&maxRecords=10&maxBytes=4096&waitMs=0",
        {
            "Tailrace-Delivery": "0",
            "Tailrace-Assignment-Epoch": "2",
            "Accept": NDJSON_CONTENT_TYPE,
        },
    )


@pytest.mark.parametrize(
    ("text", "start_offsets"),
    [
        (None, {}),
        ("", {}),
        ("flights/3:1702", {("flights", 3): 1702}),
        ("flights/3:1702,or.ders/0:12", {("flights", 3): 1702, ("or.ders", 0): 12}),
    ],
)
def test_a_delivery_is_reported_with_where_its_records_are_new(
    text: str | None, start_offsets: dict[tuple[str, int], int]
) -> None:
    headers = NUMBERED if text is None else {**NUMBERED, "tailrace-start-offsets": text}

    polled = group_requests.parse_polled(Answer(200, headers, b"batches"))

    assert polled == Polled(b"batches", 41, 2, start_offsets, None)


def test_a_delivery_that_ends_inside_of_a_batch_is_reported() -> None:
    headers = {
        **NUMBERED,
        "tailrace-start-offsets": "flights/3:1702",
        "tailrace-end-offsets": "flights/3:1705",
    }

    polled = group_requests.parse_polled(Answer(200, headers, b"batches"))

    assert polled.start_offsets == {("flights", 3): 1702}
    assert polled.end_offsets == {("flights", 3): 1705}


@pytest.mark.parametrize(("retry_after", "seconds"), [("5", 5.0), (None, 1.0)])
def test_a_poll_to_which_nothing_came_says_when_to_ask_again(
    retry_after: str | None, seconds: float
) -> None:
    headers = NUMBERED if retry_after is None else {**NUMBERED, "retry-after": retry_after}

    assert group_requests.parse_polled(Answer(204, headers, b"")).retry_after_s == seconds


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**NUMBERED, "tailrace-delivery": "one"},
        {**NUMBERED, "tailrace-start-offsets": "flights:3"},
    ],
)
def test_an_answer_without_its_numbers_is_no_brokers(headers: dict[str, str]) -> None:
    with pytest.raises(UnexpectedAnswerError):
        group_requests.parse_polled(Answer(200, headers, b""))


def test_a_commit_and_a_goodbye_have_no_body() -> None:
    commit = group_requests.commit_request("c1", delivery=41, assignment_epoch=2)
    unnamed = group_requests.commit_request("c1")
    goodbye = group_requests.goodbye_request("c1")
    without = group_requests.goodbye_request("c1", delivery=41, assignment_epoch=2, commit=False)

    assert commit.target == "/v1/consumer/commit?consumerId=c1"
    assert commit.headers == {"Tailrace-Delivery": "41", "Tailrace-Assignment-Epoch": "2"}
    assert commit.headers == without.headers
    assert unnamed.headers == goodbye.headers == {}
    assert goodbye.target == "/v1/consumer/goodbye?consumerId=c1&commit=true"
    assert without.target == "/v1/consumer/goodbye?consumerId=c1&commit=false"
    assert {each.body for each in (commit, goodbye)} == {b""}


@pytest.mark.parametrize(
    ("problem", "status", "error"),
    [
        ("consumer-not-registered", 409, ConsumerNotRegisteredError),
        ("stale-delivery", 409, StaleDeliveryError),
        ("stale-assignment", 409, StaleAssignmentError),
        ("group-not-found", 404, GroupNotFoundError),
        ("group-not-idle", 409, GroupNotIdleError),
        ("group-kind", 409, GroupKindError),
        ("consumer-exists", 400, ProblemError),
    ],
)
def test_refusals_have_their_own_errors(
    problem: str, status: int, error: type[ProblemError]
) -> None:
    refused = answer({"type": f"/v1/problems/{problem}", "title": "No"}, status=status)

    with pytest.raises(ProblemError) as caught:
        group_requests.parse_done(refused)

    assert (type(caught.value), caught.value.type) == (error, problem)


def test_groups_are_listed() -> None:
    damaged = {**GROUP, "group": "g2", "lag": None, "oldestUnread": None}

    groups = group_requests.parse_groups(answer({"groups": [GROUP, damaged]}))

    assert group_requests.groups_request() == Request("GET", "/v1/groups")
    assert groups[0] == INFO
    assert (groups[1].group, groups[1].lag, groups[1].oldest_unread) == ("g2", None, None)


def test_a_group_is_described() -> None:
    document = {
        **GROUP,
        "assignmentEpoch": 2,
        "coordinator": {"topic": "__groups", "partition": 1},
        "consumers": [CONSUMER],
        "partitions": [PARTITION],
    }

    details = group_requests.parse_group(answer(document))

    assert group_requests.group_request("g/1") == Request("GET", "/v1/groups/g%2F1")
    consumer = GroupConsumer(
        "c1", ("flights",), "startFromLatest", 30_000, 12, (TopicPartition("flights", 3),)
    )
    partition = GroupPartition("flights", 3, "c1", 7, 6, 0, 10, 3, "open", None, 0)
    assert details == GroupDetails(INFO, 2, (consumer,), (partition,))
    assert to_document(consumer) == CONSUMER
    assert to_document(partition) == PARTITION


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (group_requests.reset_group_request("g", to="earliest"), {"to": "earliest"}),
        (
            group_requests.reset_group_request(
                "g", timestamp_us=TIME_US, topics=("a",), dry_run=True
            ),
            {"timestamp": TIME_US, "topics": ["a"], "dryRun": True},
        ),
        (
            group_requests.reset_group_request("g", offsets={"flights": {0: 12}}),
            {"offsets": {"flights": {"0": 12}}},
        ),
    ],
)
def test_a_reset_says_where_to(request_: Request, body: object) -> None:
    assert (request_.method, request_.target) == ("POST", "/v1/groups/g/reset")
    assert body_of(request_) == body


def test_a_reset_reports_what_it_has_moved() -> None:
    document = {
        "group": "g",
        "dryRun": True,
        "isIdle": False,
        "partitions": [{"topic": "flights", "partition": 0, "from": 9, "to": 2}],
        "movedBack": 7,
        "movedForward": 0,
    }

    reset = group_requests.parse_group_reset(answer(document))

    moved = (MovedPartition("flights", 0, 9, 2),)
    assert reset == GroupReset("g", True, False, moved, 7, 0)
    assert to_document(reset) == document


def test_a_reader_publishes_its_own_offsets() -> None:
    request = group_requests.publish_offsets_request("s:1", "spark", {"flights": {0: 12, 1: 0}})

    assert (request.method, request.target) == ("PUT", "/v1/groups/s%3A1/offsets")
    assert body_of(request) == {"source": "spark", "offsets": {"flights": {"0": 12, "1": 0}}}


def test_a_group_is_deleted() -> None:
    assert group_requests.delete_group_request("g") == Request("DELETE", "/v1/groups/g")
