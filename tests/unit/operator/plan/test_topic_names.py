from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_operator.plan.topic_names import TopicNames, holder_of


def topic(name: str, *, created: int = 0, uid: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid or name,
        "creationTimestamp": f"2026-01-01T00:00:{created:02d}Z",
    }
    return {"kind": "Topic", "metadata": metadata, "spec": {"cluster": "events", **spec}}


def names_of(*documents: dict[str, Any]) -> TopicNames:
    names = TopicNames()
    for document in documents:
        names.note("ns", document["metadata"]["name"], document)
    return names


def flights(name: str, created: int = 0, uid: str = "") -> dict[str, Any]:
    return topic(name, created=created, uid=uid, topicName="flights")


@pytest.mark.parametrize(
    ("others", "holder"),
    [
        ([], None),
        ([flights("older", 1)], "older"),
        ([flights("younger", 3)], None),
        ([flights("older", 1), flights("oldest", 0)], "oldest"),
        ([flights("as-old", 2, uid="a")], "as-old"),
        ([flights("as-old", 2, uid="z")], None),
        ([topic("flights", created=1)], "flights"),  # by its own name
        ([topic("older", created=1, topicName="clicks")], None),
        ([topic("older", created=1, topicName="flights", cluster="other")], None),
    ],
)
def test_the_oldest_resource_has_a_topic_of_its_ring(
    others: list[dict[str, Any]], holder: str | None
) -> None:
    own = flights("own", 2, uid="own")

    assert names_of(own, *others).holder("ns", "own") == holder
    assert holder_of("own", [*others, own]) == holder


def test_a_resource_that_is_not_known_waits_for_no_other() -> None:
    names = names_of(flights("older", 1))

    assert names.holder("ns", "unknown") is None
    assert names.holder("elsewhere", "older") is None
    assert holder_of("unknown", [flights("older", 1)]) is None


def test_namespaces_have_rings_of_their_own() -> None:
    names = names_of(flights("older", 1))

    assert names.note("elsewhere", "younger", flights("younger", 2)) == []
    assert names.holder("elsewhere", "younger") is None


def test_who_names_the_same_topic_is_notified_of_each_change() -> None:
    names = names_of(flights("first", 1), flights("second", 2), topic("clicks"))

    assert names.note("ns", "third", flights("third", 3)) == ["first", "second"]
    assert names.note("ns", "third", topic("third", created=3, topicName="clicks")) == [
        "first",
        "second",
        "clicks",
    ]
    assert names.note("ns", "first", None) == ["second"]
    assert names.note("ns", "first", None) == []
    assert names.holder("ns", "second") is None


def test_the_topics_of_a_cluster_are_those_that_name_it() -> None:
    names = names_of(topic("a"), topic("b", cluster="other"), topic("c"))

    assert names.of_cluster("ns", "events") == ["a", "c"]
    assert names.of_cluster("elsewhere", "events") == []


def test_nothing_is_kept_of_what_is_gone() -> None:
    names = names_of(flights("a"), flights("b"))

    for name in ("a", "b", "b", "never-there"):
        names.note("ns", name, None)

    assert names._claimants == {}


resources = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.sampled_from("xy")),
    unique_by=lambda each: each[0],
)


@given(resources)
def test_each_topic_has_one_holder_and_all_others_know_it(
    drawn: list[tuple[str, int, str]],
) -> None:
    documents = [topic(name, created=created, topicName=place) for name, created, place in drawn]
    names = names_of(*documents)

    for place in {each[2] for each in drawn}:
        rivals = [name for name, _, its in drawn if its == place]
        holders = [name for name in rivals if names.holder("ns", name) is None]
        assert len(holders) == 1
        assert {names.holder("ns", name) for name in rivals} <= {None, holders[0]}
