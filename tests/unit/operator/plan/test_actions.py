"""The words by which actions are reported, and what of a problem's message stays the same."""

import pytest

from tailrace_operator.plan.actions import (
    MADE,
    Action,
    AlterTopic,
    Apply,
    Blocked,
    CreateSecret,
    CreateTopic,
    DeleteTopic,
    Found,
    GrowClaim,
    PlacePod,
    RecordFounding,
    Remove,
    ReplaceStatefulSet,
    RestartBroker,
    SetFinalizer,
    words_of,
)
from tailrace_operator.plan.findings import subject
from tailrace_operator.plan.observed import ChildName

SECRET = {"kind": "Secret", "metadata": {"name": "events-ring"}}


@pytest.mark.parametrize(
    ("action", "reason", "said"),
    [
        (Apply(SECRET, MADE), "Creating", "Secret events-ring: created"),
        (Apply(SECRET, "a"), "Updating", "Secret events-ring: a"),
        (CreateSecret(SECRET), "Creating", "Secret events-ring: created"),
        (Remove(ChildName("Service", "x"), "any"), "Deleting", "Service x: not wanted any more"),
        (
            ReplaceStatefulSet("events", "u", "a 1 → 2"),
            "Updating",
            "StatefulSet events: recreated around its pods, a 1 → 2",
        ),
        (PlacePod(1, "any", "b"), "PlacingBrokers", "broker 1: placed in zone b"),
        (RecordFounding(3, None), "Founding", "the ring of 3 brokers is about to be founded"),
        (RecordFounding(3, "r"), "Founding", "the ring of 3 brokers is r"),
        (Found(3), "Founding", "the ring of 3 brokers is being founded"),
        (
            GrowClaim("data-events-0", "20Gi"),
            "UpdatingVolumes",
            "volume data-events-0: grows to 20Gi",
        ),
        (RestartBroker(1, "u", "why"), "Restarting", "broker 1: restarted, why"),
        (CreateTopic("a", {}), "Creating", "topic a is being created"),
        (AlterTopic("a", {}, "x 1 → 2"), "Updating", "topic a: x 1 → 2"),
        (DeleteTopic("a"), "Deleting", "topic a is being deleted"),
        (SetFinalizer(True), "Updating", "its deletion waits until the topic is deleted"),
        (SetFinalizer(False), "Updating", "its deletion waits for nothing any more"),
        (Blocked("A", "b"), "A", "b"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_an_action_is_reported_in_its_words(action: Action, reason: str, said: str) -> None:
    assert words_of(action)[:2] == (reason, said)


@pytest.mark.parametrize(
    ("action", "event", "note"),
    [
        (Apply(SECRET, MADE, True), "ObjectCreated", "Secret events-ring: created, was missing"),
        (Apply(SECRET, "a", True), "DriftCorrected", "Secret events-ring: a"),
        (Apply(SECRET, "a"), None, "Secret events-ring: a"),
        (Found(1), "RingFounded", "ring r of 1 broker"),
        (RestartBroker(1, "u", "why"), "BrokerRestart", "broker 1: restarted, why"),
        (DeleteTopic("a"), "TopicDeleted", "topic a, with its records"),
        (Blocked("A", "b"), "A", "b"),
    ],
)
def test_an_event_says_what_came_of_an_action(action: Action, event: str | None, note: str) -> None:
    words = words_of(action, "r")

    assert (words.event and words.event[0]) == event
    assert (words.note or words.text) == note


@pytest.mark.parametrize(
    ("message", "about"),
    [
        ("pod events-1: no node fits", "pod events-1: no node fits"),
        ("pod events-1: no node fits: 3 of 3 are full", "pod events-1: no node fits"),
        ("pod events-1: no node fits; try again", "pod events-1: no node fits"),
    ],
)
def test_the_subject_of_a_message_leaves_details_out(message: str, about: str) -> None:
    assert subject(message) == about
