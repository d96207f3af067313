"""Consumers of groups by HTTP: registering, confirming, sharing and waiting."""

import json
from typing import Any

import pytest

from tests.support.broker.fixtures import RunningBroker
from tests.support.groups.consumers import (
    FORM_NAMES,
    FORMS,
    ask,
    delivery_of,
    got,
    make,
    poll,
    produce,
    register,
    take_all,
    values,
)
from tests.support.http.http11 import (
    Connection,
    document,
    problem,
    read_listeners,
    request,
    settle,
)

pytestmark = pytest.mark.integration

# Three times as long as a test waits for an answer: what is answered was not waited for to the end.
LONG_MS = 60_000
SESSION_MS_DEFAULT = 120_000
each_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


# --- register -------------------------------------------------------------------------------------


@read_listeners
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_consumer_registers_by_its_query(
    public: Connection, connection: Connection, topic: str, method: str
) -> None:
    make(public, topic)
    query = f"consumer_id={topic}&group=g{topic}&topic={topic}&topic={topic}&sessionMs=5000"
    asked = request(f"/v1/consumer/register?{query}", method=method, content_length=None)
    answers = [connection.exchange(asked) for _ in range(2)]

    assert document(answers[0]) == {
        "consumerId": topic,
        "group": f"g{topic}",
        "topics": [topic],
        "onNewGroup": "startFromLatest",
        "sessionMs": 5000,
        "assignmentEpoch": 1,
    }
    assert answers[1].body == answers[0].body


@read_listeners
def test_a_consumer_registers_by_a_body(
    public: Connection, connection: Connection, topic: str
) -> None:
    make(public, topic)
    body = {"id": topic, "topics": [topic], "onNewGroup": "startFromEarliest"}
    by_body = connection.exchange(request("/v1/consumer/register", json.dumps(body).encode()))
    by_query = register(connection, topic, topic)

    assert by_body.status == 200
    assert document(by_body) == by_query
    assert by_query["group"] == "default"
    assert by_query["sessionMs"] == SESSION_MS_DEFAULT


@pytest.mark.parametrize(
    "headers",
    [
        {"content_length": None},
        {},
        {"content_type": "application/json"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": "application/json; charset=utf-8", "content_length": None},
    ],
    ids=["no length", "no type", "json", "form", "json without length"],
)
def test_without_a_body_any_content_type_is_well(
    public: Connection, topic: str, headers: dict[str, Any]
) -> None:
    make(public, topic)
    asked = ask("register", topic, headers=headers, topic=topic, group=topic)

    assert public.exchange(asked).status == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"group": "other"},
        {"topic": "other"},
        {"onNewGroup": "startFromLatest"},
        {"sessionMs": 9000},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_consumer_does_not_change_by_registering_again(
    public: Connection, topic: str, changed: dict[str, Any]
) -> None:
    register(public, topic, topic, group=topic)
    same = {"topic": topic, "group": topic, "onNewGroup": "startFromEarliest"}
    if "topic" in changed:
        make(public, changed["topic"])
    answer = public.exchange(ask("register", topic, **{**same, **changed}))

    assert problem(answer) == (400, "consumer-exists")
    assert document(answer)["consumerId"] == topic


VISIBLE = "1 to 249 visible characters without /"
REFUSED_QUERIES = [
    ("topic=t", "consumerId", "consumerId is missing"),
    ("consumerId=c", "topic", "0 topics are given; 1 to 1000 it can be"),
    ("consumerId=&topic=t", "consumerId", f"consumerId is ; it is {VISIBLE}"),
    ("consumerId=a+b&topic=t", "consumerId", f"consumerId is a b; it is {VISIBLE}"),
    ("consumerId=a/b&topic=t", "consumerId", f"consumerId is a/b; it is {VISIBLE}"),
    ("consumerId=c&group=%00&topic=t", "group", f"group is \0; it is {VISIBLE}"),
    ("consumerId=c&group=%FF&topic=t", "group", f"group is ?; it is {VISIBLE}"),
    (
        f"consumerId={'c' * 250}&topic=t",
        "consumerId",
        f"consumerId is {'c' * 40}…; it is {VISIBLE}",
    ),
    (
        "consumerId=c&topic=t&onNewGroup=latest",
        "onNewGroup",
        "onNewGroup is latest; it is startFromEarliest or startFromLatest",
    ),
    (
        "consumerId=c&topic=t&sessionMs=999",
        "sessionMs",
        "sessionMs is 999; it is a whole number from 1000 to 3600000",
    ),
]


@pytest.mark.parametrize(("query", "parameter", "detail"), REFUSED_QUERIES)
def test_what_is_wrong_with_a_registration_is_named(
    public: Connection, query: str, parameter: str, detail: str
) -> None:
    answer = public.exchange(request(f"/v1/consumer/register?{query}"))

    assert problem(answer) == (400, "invalid-parameter")
    said = document(answer)
    assert (said["parameter"], said["detail"]) == (parameter, detail)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"id": "a b", "topics": ["t"]}, "id"),
        ({"id": "c", "topics": []}, "topics"),
        ({"topics": ["t"]}, "id"),
        ({"id": "c", "topics": ["t"], "sessionMs": 1}, "sessionMs"),
        ({"id": "c", "topics": ["t"], "owner": "me"}, "owner"),
    ],
)
def test_what_is_wrong_with_a_registration_s_body_is_named(
    public: Connection, body: dict[str, Any], parameter: str
) -> None:
    answer = public.exchange(request("/v1/consumer/register", json.dumps(body).encode()))

    assert problem(answer) == (400, "invalid-parameter")
    assert document(answer)["parameter"] == parameter


@pytest.mark.parametrize(("name", "value"), [("group", "g"), ("createTopics", "false")])
def test_a_registration_is_in_the_query_or_in_the_body(
    public: Connection, topic: str, name: str, value: str
) -> None:
    body = json.dumps({"id": topic, "topics": [topic]}).encode()
    answer = public.exchange(request(f"/v1/consumer/register?{name}={value}", body))

    assert problem(answer) == (400, "invalid-parameter")
    assert document(answer)["detail"] == f"{name} is given beside a body; give all in one of them"


# --- confirming -----------------------------------------------------------------------------------


@each_form
def test_a_poll_that_names_an_older_delivery_gets_the_same_again(
    public: Connection, topic: str, form: str
) -> None:
    """Its answer was lost; what came meanwhile is not in it."""
    make(public, topic, b"1\n2\n", partitions=2)
    register(public, topic, topic, group=topic)
    first = public.exchange(poll(topic, delivery=0, accept=form))
    produce(public, topic, b"3\n4\n")
    again = public.exchange(poll(topic, delivery=0, accept=form, maxRecords=1, maxBytes=1))
    other = public.exchange(poll(topic, delivery=delivery_of(first), accept=form))

    assert values(got(first)) == [1, 2]
    assert again.body == first.body
    assert delivery_of(again) == delivery_of(first)
    assert values(got(other)) == [3, 4]
    assert delivery_of(other) > delivery_of(first)


def test_what_was_cut_within_a_batch_is_the_same_again(public: Connection, topic: str) -> None:
    make(public, topic, b"0\n1\n2\n3\n4\n")
    register(public, topic, topic, group=topic)
    assert values(got(public.exchange(poll(topic, maxRecords=1)))) == [0]
    first = public.exchange(poll(topic, maxRecords=2))

    for form in FORMS[:2]:
        again = public.exchange(poll(topic, delivery=0, accept=form))
        assert values(got(again)) == values(got(first)) == [1, 2]
        assert delivery_of(again) == delivery_of(first)


def test_a_poll_without_the_header_confirms_the_last(public: Connection, topic: str) -> None:
    make(public, topic, b"1\n2\n")
    register(public, topic, topic, group=topic)

    assert values(got(public.exchange(poll(topic, maxRecords=1)))) == [1]
    assert values(got(public.exchange(poll(topic, maxRecords=1)))) == [2]
    assert public.exchange(poll(topic)).status == 204


def test_nothing_new_is_said_with_the_last_confirmed_delivery(
    public: Connection, topic: str
) -> None:
    make(public, topic)
    epoch = register(public, topic, topic, group=topic)["assignmentEpoch"]
    before = public.exchange(poll(topic))
    produce(public, topic, b"1")
    number = delivery_of(public.exchange(poll(topic)))
    after = public.exchange(poll(topic))

    assert (before.status, after.status) == (204, 204)
    assert (delivery_of(before), delivery_of(after)) == (0, number)
    for answer in (before, after):
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["tailrace-assignment-epoch"] == str(epoch)
        assert "content-type" not in answer.headers


@read_listeners
def test_a_commit_is_safe_to_repeat_and_outlives_the_broker(
    broker: RunningBroker, listener: int
) -> None:
    with Connection(broker.port + listener) as connection:
        register(connection, "c", "t", group="g")
        with Connection(broker.port) as public:
            produce(public, "t", b"1\n2\n", partitionKey="k")
        number = delivery_of(connection.exchange(poll("c", maxRecords=1)))
        named = ask("commit", "c", headers={"tailrace_delivery": number})
        for each in (named, named, ask("commit", "c")):
            answer = connection.exchange(each)
            assert (answer.status, answer.body) == (204, b"")
    broker.restart()
    with Connection(broker.port + listener) as connection:
        assert values(got(connection.exchange(poll("c", delivery=number)))) == [2]


def test_a_commit_of_another_delivery_than_the_last_is_refused(
    public: Connection, topic: str
) -> None:
    make(public, topic, b"1")
    register(public, topic, topic, group=topic)
    first = public.exchange(poll(topic))
    wrong = {"tailrace_delivery": delivery_of(first) + 1}
    refused = public.exchange(ask("commit", topic, headers=wrong))

    assert problem(refused) == (409, "stale-delivery")
    assert document(refused)["delivery"] == delivery_of(first) + 1
    assert public.exchange(poll(topic, delivery=0)).body == first.body


@pytest.mark.parametrize("verb", ["poll", "commit", "goodbye"])
def test_who_has_lost_its_name_to_another_is_reported(
    public: Connection, topic: str, verb: str
) -> None:
    make(public, topic, b"1")
    old = register(public, topic, topic, group=topic)["assignmentEpoch"]
    assert public.exchange(ask("goodbye", topic)).status == 200
    new = register(public, topic, topic, group=topic)["assignmentEpoch"]
    refused, taken = (
        public.exchange(ask(verb, topic, headers={"tailrace_assignment_epoch": epoch}))
        for epoch in (old, new)
    )

    assert problem(refused) == (409, "stale-assignment")
    assert document(refused)["assignmentEpoch"] == new
    assert taken.status in {200, 204}


@pytest.mark.parametrize("name", ["Tailrace-Delivery", "Tailrace-Assignment-Epoch"])
@pytest.mark.parametrize("verb", ["poll", "commit", "goodbye"])
def test_a_header_that_is_no_number_or_comes_twice_is_refused(
    public: Connection, topic: str, verb: str, name: str
) -> None:
    register(public, topic, topic, group=topic)
    for value in ("x", "", f"1\r\n{name}: 1"):
        answer = public.exchange(ask(verb, topic, headers={name: value}))
        assert problem(answer) == (400, "invalid-parameter")
        assert document(answer)["parameter"] == name


@pytest.mark.parametrize(("is_last", "left"), [(True, [2]), (False, [1, 2])])
def test_a_goodbye_confirms_what_it_names(
    public: Connection, topic: str, is_last: bool, left: list[int]
) -> None:
    make(public, topic, b"1\n2\n")
    register(public, topic, topic, group=topic)
    number = delivery_of(public.exchange(poll(topic, maxRecords=1)))
    named = {"tailrace_delivery": number if is_last else 0}
    assert public.exchange(ask("goodbye", topic, headers=named)).status == 200
    register(public, topic, topic, group=topic)

    assert values(take_all(public, topic)) == left


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_heartbeat_is_no_registration(public: Connection, topic: str, method: str) -> None:
    """By its epoch a process learns that its consumer was removed, or that another has its name."""
    make(public, topic)

    def says(epoch: int) -> Any:
        known = {"group": topic, "topic": topic, "onNewGroup": "startFromEarliest"}
        headers = {"tailrace_assignment_epoch": epoch, "method": method}
        return public.exchange(ask("register", topic, headers=headers, **known))

    assert problem(says(1)) == (409, "consumer-not-registered")
    old = register(public, topic, topic, group=topic)["assignmentEpoch"]
    assert document(says(old))["assignmentEpoch"] == old
    assert public.exchange(ask("goodbye", topic)).status == 200
    assert problem(says(old)) == (409, "consumer-not-registered")
    new = register(public, topic, topic, group=topic)["assignmentEpoch"]
    assert problem(says(old)) == (409, "stale-assignment")
    assert document(says(new))["assignmentEpoch"] == new


@pytest.mark.parametrize("value", ["x", ""])
def test_an_epoch_that_is_no_number_registers_nobody(
    public: Connection, topic: str, value: str
) -> None:
    make(public, topic)
    headers = {"tailrace_assignment_epoch": value}
    answer = public.exchange(ask("register", topic, topic=topic, headers=headers))

    assert problem(answer) == (400, "invalid-parameter")
    assert document(answer)["parameter"] == "Tailrace-Assignment-Epoch"


@read_listeners
@pytest.mark.parametrize("verb", ["poll", "commit", "goodbye"])
def test_who_is_not_registered_is_asked_to_do_so(
    connection: Connection, topic: str, verb: str
) -> None:
    answer = connection.exchange(ask(verb, topic))

    assert problem(answer) == (409, "consumer-not-registered")
    assert document(answer)["consumerId"] == topic


@read_listeners
@pytest.mark.parametrize(("commit", "left"), [(None, [2]), ("true", [2]), ("false", [1, 2])])
def test_a_goodbye_confirms_the_last_delivery_unless_it_says_otherwise(
    public: Connection, connection: Connection, topic: str, commit: str | None, left: list[int]
) -> None:
    make(public, topic, b"1\n2\n")
    register(connection, topic, topic, group=topic)
    connection.exchange(poll(topic, maxRecords=1))
    said: dict[str, Any] = {} if commit is None else {"commit": commit}
    answer = connection.exchange(ask("goodbye", topic, **said))

    assert (answer.status, answer.body) == (200, b"{}\n")
    assert problem(connection.exchange(poll(topic))) == (409, "consumer-not-registered")
    register(connection, f"{topic}2", topic, group=topic)
    assert values(take_all(connection, f"{topic}2")) == left


# --- sharing --------------------------------------------------------------------------------------


def test_a_consumer_without_a_partition_is_asked_to_come_back_later(
    public: Connection, topic: str
) -> None:
    make(public, topic)
    register(public, f"{topic}a", topic, group=topic)
    register(public, f"{topic}b", topic, group=topic)
    answer = public.exchange(poll(f"{topic}b"))

    assert (answer.status, answer.headers["retry-after"]) == (204, "5")
    assert answer.headers["tailrace-assignment-epoch"] == "2"


# --- waiting --------------------------------------------------------------------------------------


@read_listeners
@each_form
def test_a_poll_that_waits_is_answered_by_the_first_produce(
    shared_broker: RunningBroker, public: Connection, connection: Connection, topic: str, form: str
) -> None:
    make(public, topic, partitions=2)
    register(connection, topic, topic, group=topic)
    connection.send(poll(topic, accept=form, waitMs=LONG_MS))
    settle(shared_broker.port)
    produce(public, topic, b"1")

    assert values(got(connection.receive())) == [1]


def test_a_wait_ends(public: Connection, topic: str) -> None:
    make(public, topic)
    register(public, topic, topic, group=topic)

    assert public.exchange(poll(topic, waitMs=20)).status == 204


def test_a_wait_ends_when_its_consumer_is_removed(
    shared_broker: RunningBroker, public: Connection, topic: str
) -> None:
    make(public, topic)
    register(public, topic, topic, group=topic)
    with Connection(shared_broker.port) as waiting:
        waiting.send(poll(topic, waitMs=LONG_MS))
        settle(shared_broker.port)
        assert public.exchange(ask("goodbye", topic)).status == 200
        assert problem(waiting.receive()) == (409, "consumer-not-registered")
