"""What an action is called, and what of a problem's message stays the same."""

import pytest

from tailrace_operator.plan.actions import Blocked, DeleteTopic, SetFinalizer, progress_reason
from tailrace_operator.plan.problems import subject


def test_a_blocked_resource_has_the_reason_of_its_block() -> None:
    assert progress_reason(Blocked("SecretMissing", "make it")) == "SecretMissing"
    assert progress_reason(DeleteTopic("flights")) == "Deleting"
    assert progress_reason(SetFinalizer(is_wanted=True)) == "Updating"


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
