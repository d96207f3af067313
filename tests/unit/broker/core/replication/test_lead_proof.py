"""Of three replicas, as of two, a leader needs the answer of one other."""

from tailrace_broker.core.replication.lead_proof import LeadProof


def test_a_round_is_over_once_enough_have_answered_it() -> None:
    proof = LeadProof()
    assert not proof.is_given([0, 0], 3)  # nobody has asked

    proof.ask([], 3)
    assert not proof.is_given([0, 0], 3)
    assert proof.is_given([0, 1], 3)
    assert not proof.is_given([1, 1], 3)


def test_answers_to_an_earlier_round_do_not_count() -> None:
    proof = LeadProof()
    proof.ask([], 3)
    proof.ask([], 3)

    assert not proof.is_given([1, 1], 3)
    assert proof.is_given([1, 2], 3)


def test_the_other_of_two_must_answer_and_a_lone_copy_needs_nobody() -> None:
    proof = LeadProof()
    proof.ask([], 2)
    assert not proof.is_given([0], 2)
    assert proof.is_given([1], 2)

    proof.ask([], 1)
    assert proof.is_given([], 1)
