"""Scenarios of rings: whatever arrives, late and twice and in another order, the rules hold."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_broker.codec.commands import decode_command, encode_command
from tailrace_broker.codec.ring_snapshot import decode_state, encode_slices
from tailrace_broker.core.ring import commands as ring_commands
from tailrace_broker.core.ring.commands import apply_command
from tests.support.ring.found_damage import happen_to_damage
from tests.support.ring.resliced_topics import happen_to_slices
from tests.support.ring.ring_scenario import Scenario, run_scenario

seeds = st.integers(0, 2**32)


@settings(max_examples=20)
@given(seeds)
def test_the_rules_hold_in_any_scenario(seed: int) -> None:
    assert run_scenario(seed).sent


@settings(max_examples=10)
@given(seeds)
def test_the_rules_hold_while_topics_get_other_numbers_of_partitions(seed: int) -> None:
    scenario = run_scenario(seed, 200, also=happen_to_slices)

    assert decode_state(b"".join(encode_slices(scenario.state))) == scenario.state


@settings(max_examples=10)
@given(seeds)
def test_the_rules_hold_while_replicas_of_open_ranges_find_damage(seed: int) -> None:
    assert run_scenario(seed, also=happen_to_damage).sent


@settings(max_examples=10)
@given(seeds)
def test_the_rules_hold_when_a_command_comes_again_that_is_forgotten(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring_commands, "RECENT_MAX", 10)

        assert len(run_scenario(seed).state.recent) <= 10


@settings(max_examples=10)
@given(seeds)
def test_the_same_commands_make_the_same_state(seed: int) -> None:
    scenario, again = run_scenario(seed, 150), run_scenario(seed, 150)

    assert scenario.state == again.state
    assert list(scenario.state.recent.items()) == list(again.state.recent.items())


@settings(max_examples=10)
@given(seeds, st.integers(0, 300))
def test_a_state_comes_back_from_its_snapshot_and_goes_on_the_same(seed: int, steps: int) -> None:
    scenario = run_scenario(seed, steps)

    restored = decode_state(b"".join(encode_slices(scenario.state)))

    assert restored == scenario.state
    assert list(restored.recent) == list(scenario.state.recent)
    for stamped in scenario.waiting:
        assert apply_command(restored, stamped) == apply_command(scenario.state, stamped)


@settings(max_examples=10)
@given(seeds)
def test_commands_come_back_from_the_log(seed: int) -> None:
    for stamped in run_scenario(seed, 100).sent:
        assert decode_command(encode_command(stamped)) == stamped


@pytest.mark.timeout(30)
def test_every_rule_is_met_in_some_scenario() -> None:
    """A rule that never fires is untested."""
    met: Counter[str] = Counter()
    for seed in range(60):
        met += run_scenario(seed).applied

    assert met.keys() >= {
        "AbortStep",
        "AcceptLoss: not-a-replica",
        "AcceptLoss: not-lost",
        "AlterTopic",
        "BeginStep",
        "BeginStep: no-leader",
        "BeginStep: replica-not-in-isr",
        "ChangeIsr",
        "ChangeIsr: below-floor",
        "ChangeIsr: range-sealed",
        "ChangeIsr: stale-epoch",
        "ChangeIsr: stale-version",
        "Completed",
        "Completed: stale-registration",
        "CreateTopic",
        "DeleteTopic",
        "DropCopy",
        "DropCopy: not-a-replica",
        "DropCopy: too-few-copies",
        "Fence",
        "Lead",
        "Lead: all-ghosts",
        "Lead: fenced",
        "Lead: not-in-isr",
        "Lead: stale-epoch",
        "Lead: stale-registration",
        "Lost",
        "Lost: only-copy",
        "PurgeTopics",
        "Register",
        "Register: retired",
        "Register: superseded",
        "RestoreTopic",
        "Retire",
        "Sealed",
        "Sealed: step-not-open",
    }


def test_every_rule_of_a_reslice_is_met_in_some_scenario() -> None:
    met: Counter[str] = Counter()
    for seed in range(60):
        met += run_scenario(seed, 200, also=happen_to_slices).applied

    assert met.keys() >= {
        "Reslice",
        "Reslice: no-leader",
        "Reslice: range-not-found",
        "Reslice: replica-not-in-isr",
        "Reslice: sliced-already",
        "Reslice: step-open",
    }


def test_a_scenario_is_the_same_with_the_same_seed() -> None:
    one, other = Scenario(Random(5)), Scenario(Random(5))
    for _ in range(50):
        one.happen()
        other.happen()

    assert one.sent == other.sent
