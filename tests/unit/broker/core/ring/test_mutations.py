"""Mutations of the rules of the replicated state, one at a time: a scenario finds each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring import commands as ring_commands
from tailrace_broker.core.ring import (
    copies,
    range_commands,
    registrations,
    step_commands,
    topic_commands,
)
from tailrace_broker.core.ring import steps as ring_steps
from tailrace_broker.core.ring import topics as ring_topics
from tailrace_broker.model.commands import Lead, Register, Stamped
from tailrace_broker.model.ring_state import (
    Cause,
    Loss,
    RangeState,
    Refusal,
    Registration,
    Replica,
    RingState,
)
from tests.support.ring.ring_scenario import run_scenario

SEED_COUNT = 300

Mutation = Callable[[pytest.MonkeyPatch], None]


# --- registrations ---


def loss_of_the_last_start_only(patch: pytest.MonkeyPatch) -> None:
    """A start that nobody knew of, before the last one, may have cost more."""
    loss_since = registrations.loss_since

    def of_last(before: Registration | None, command: Register) -> Loss:
        loss = loss_since(before, command)
        return command.starts[-1].loss if loss != "disk" else loss

    patch.setattr(registrations, "loss_since", of_last)


def class_carried_over_from_an_older_registration(patch: pytest.MonkeyPatch) -> None:
    """A ghost that has started well is in sync again."""
    after = registrations._entry_after

    def carried(
        entry: Replica, before: Registration | None, now: Registration, cause: Cause, *, stays: bool
    ) -> Replica:
        if entry.ordinal == now.ordinal and stays:
            return Replica(now.ordinal, now.number)
        return after(entry, before, now, cause, stays=stays)

    patch.setattr(registrations, "_entry_after", carried)


def restored_disk_taken_for_its_newest(patch: pytest.MonkeyPatch) -> None:
    """One that does not know its last registration is judged by what it knows."""
    since = registrations._starts_since
    patch.setattr(
        registrations, "_starts_since", lambda before, starts: since(before, starts) or starts[-1:]
    )


def empty_disk_stays_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registrations, "loss_since", lambda before, command: command.starts[-1].loss)
    after = registrations._entry_after
    patch.setattr(
        registrations,
        "_entry_after",
        lambda entry, before, now, cause, *, stays: after(entry, before, now, cause, stays=True),
    )


def power_costs_written_topics_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registrations, "_ranges_with_unflushed", lambda state, before: frozenset())


def altered_topics_taken_for_flushed(patch: pytest.MonkeyPatch) -> None:
    """As if all that was `written` were on disk as soon as the topic is `fsync`."""

    def without(state: RingState, command: Any) -> RingState | Refusal:
        after = alter(state, command)
        if isinstance(after, Refusal):
            return after
        topics = {name: replace(each, unflushed=()) for name, each in after.topics.items()}
        return replace(after, topics=topics)

    alter = topic_commands.alter_topic
    patch_handler(patch, alter, without)


def registering_keeps_leadership(patch: pytest.MonkeyPatch) -> None:
    """The leader resumes its epoch after a restart."""
    after = registrations._ranges_after

    def kept(
        state: RingState, before: Registration | None, now: Registration, damaged: Sequence[int]
    ) -> dict[int, RangeState]:
        ranges = after(state, before, now, damaged)
        return {key: _resumed(each, state.ranges[key], now) for key, each in ranges.items()}

    def _resumed(each: RangeState, old: RangeState, now: Registration) -> RangeState:
        mine = Replica(now.ordinal, now.number)
        if old.leader is None or old.leader.ordinal != now.ordinal or mine not in each.isr:
            return each
        return replace(each, leader=mine)

    patch.setattr(registrations, "_ranges_after", kept)


def late_registration_takes_its_broker_back(patch: pytest.MonkeyPatch) -> None:
    """A process that another has replaced meanwhile, on a disk of its own, is the broker again."""
    register = registrations.register

    def at_any_time(state: RingState, command: Register) -> RingState | Refusal:
        return register(
            state,
            replace(command, replaces=registrations.last_registration(state, command.ordinal)),
        )

    patch_handler(patch, register, at_any_time)


def older_boot_supersedes_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    """A registration that comes late is the broker, and its loss is judged by what it knows."""
    register = registrations.register
    since = registrations._starts_since

    def whatever(state: RingState, command: Register) -> RingState | Refusal:
        return register(state, replace(command, boot=2**62))

    patch.setattr(
        registrations, "_starts_since", lambda before, starts: since(before, starts) or starts[-1:]
    )
    patch_handler(patch, register, whatever)


def numbers_of_brokers_that_have_left_given_again(patch: pytest.MonkeyPatch) -> None:
    def of_present(state: RingState, ordinal: int) -> int:
        before = state.brokers.get(ordinal)
        return 0 if before is None else before.number

    patch.setattr(registrations, "last_registration", of_present)


def broker_of_the_ring_may_leave(patch: pytest.MonkeyPatch) -> None:
    retire = registrations.retire

    def at_once(state: RingState, command: Any) -> RingState | Refusal:
        outcome = retire(replace(state, broker_count=0), command)
        if isinstance(outcome, Refusal):
            return outcome
        return replace(outcome, broker_count=state.broker_count)

    patch.setattr(registrations, "without_replica", lambda held, ordinal: held)
    patch_handler(patch, retire, at_once)


# --- copies of sealed ranges ---


def copy_dropped_before_others_are_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        copies,
        "_complete_in_ring",
        lambda state, held, *, but: sum(
            each < state.broker_count and each != but for each in held.replicas
        ),
    )


def copy_counted_for_the_next_process(patch: pytest.MonkeyPatch) -> None:
    """Whatever has become of its disk since."""

    def of_any(state: RingState, command: Any) -> RingState | Refusal:
        held, broker = state.ranges.get(command.range_id), state.brokers.get(command.ordinal)
        if held is None or broker is None:
            return completed(state, command)
        registration, losses = held.replica_of(broker).number
        return completed(state, replace(command, registration=registration, losses=losses))

    completed = copies.completed
    patch_handler(patch, completed, of_any)


def copy_counted_although_damage_was_found_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(range_commands, "_losses_after", lambda held, ordinal: held.losses)


def nobody_takes_the_copies_of_who_leaves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step_commands, "with_copies", lambda state: state)


# --- ranges ---


def floor_broken_by_who_takes_over(patch: pytest.MonkeyPatch) -> None:
    without = range_commands.without
    patch.setattr(range_commands, "without", lambda isr, gone, floor: without(isr, gone, 1))


def floor_broken_by_its_leader(patch: pytest.MonkeyPatch) -> None:
    count = range_commands._count_whole
    patch.setattr(range_commands, "_count_whole", lambda isr: count(isr) + 1)


def ghosts_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(range_commands, "_count_whole", lambda isr: len(tuple(isr)))


def ghost_elected(patch: pytest.MonkeyPatch) -> None:
    lead = range_commands.lead

    def anyone(state: RingState, command: Lead) -> RingState | Refusal:
        outcome = lead(state, command)
        if not isinstance(outcome, Refusal) or outcome.reason not in ("not-in-isr", "all-ghosts"):
            return outcome
        led = state.ranges[command.range_id]
        mine = Replica(command.ordinal, command.registration)
        others = tuple(each for each in led.isr if each.ordinal != mine.ordinal)
        if len(others) == len(led.isr):
            return outcome
        healed = replace(led, isr=(*others, mine), version=led.version + 1)
        return lead(replace(state, ranges={**state.ranges, led.id: healed}), command)

    patch_handler(patch, lead, anyone)


def lead_without_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks leads, in the epoch that it has asked for."""
    lead = range_commands.lead

    def at_once(state: RingState, command: Lead) -> RingState | Refusal:
        led = state.ranges.get(command.range_id)
        if led is None:
            return lead(state, command)
        back = replace(led, epoch=command.epoch)
        return lead(replace(state, ranges={**state.ranges, led.id: back}), command)

    patch_handler(patch, lead, at_once)


def lead_of_an_older_registration(patch: pytest.MonkeyPatch) -> None:
    lead = range_commands.lead

    def of_any(state: RingState, command: Lead) -> RingState | Refusal:
        led = state.ranges.get(command.range_id)
        outcome = lead(state, command)
        if isinstance(outcome, Refusal) and outcome.reason == "stale-registration" and led:
            mine = Replica(command.ordinal, command.registration)
            return range_commands._led(state, led, mine, led.isr)
        return outcome

    patch_handler(patch, lead, of_any)


def fenced_broker_leads(patch: pytest.MonkeyPatch) -> None:
    def current(state: RingState, ordinal: int, registration: int) -> Registration | Refusal:
        broker = state.brokers.get(ordinal)
        if broker is None or broker.number != registration:
            return Refusal("stale-registration", "registered again")
        return broker

    patch.setattr(range_commands, "_current", current)


def isr_changed_without_a_version(patch: pytest.MonkeyPatch) -> None:
    """A late answer brings back who has left since."""
    change = range_commands.change_isr

    def any_version(state: RingState, command: Any) -> RingState | Refusal:
        led = state.ranges.get(command.range_id)
        version = command.version if led is None else led.version
        return change(state, replace(command, version=version))

    patch_handler(patch, change, any_version)


def isr_changed_by_an_older_leader(patch: pytest.MonkeyPatch) -> None:
    change = range_commands.change_isr

    def any_epoch(state: RingState, command: Any) -> RingState | Refusal:
        led = state.ranges.get(command.range_id)
        epoch = command.epoch if led is None else led.epoch
        version = command.version if led is None else led.version
        return change(state, replace(command, epoch=epoch, version=version))

    patch_handler(patch, change, any_epoch)


# --- topics ---


def partition_ids_reused(patch: pytest.MonkeyPatch) -> None:
    """A restored topic gets its partitions again."""
    restore = topic_commands.restore_topic

    def again(state: RingState, command: Any) -> RingState | Refusal:
        found = state.deleted.get(command.topic_id)
        if found is None:
            return restore(state, command)
        topic = replace(found.topic, slices=(), next_partition=0)
        forgotten = {**state.deleted, topic.id: replace(found, topic=topic)}
        return restore(replace(state, deleted=forgotten), command)

    patch_handler(patch, restore, again)


def partition_ids_of_children_begin_anew(patch: pytest.MonkeyPatch) -> None:
    follow = step_commands._Lineage.follow
    patch.setattr(
        step_commands._Lineage,
        "follow",
        lambda self, topic: follow(self, replace(topic, next_partition=0)),
    )


def topic_made_twice_by_a_late_creation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring_commands, "RECENT_MAX", 10)
    patch.setattr(topic_commands, "_is_known", lambda state, topic_id: False)


def topic_created_in_a_range_that_is_being_sealed(patch: pytest.MonkeyPatch) -> None:
    with_partitions = ring_topics.with_partitions
    patch.setattr(
        topic_commands,
        "with_partitions",
        lambda topic, ranges: with_partitions(topic, [replace(e, step=None) for e in ranges]),
    )


def deleted_topic_restored_into_sealed_ranges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_commands, "_check_lineage", lambda state, topic: None)


# --- steps ---


def late_step_commit_after_reopen(patch: pytest.MonkeyPatch) -> None:
    """What was reported in a step that ended counts in the next one."""
    seal = step_commands.seal

    def of_any_step(state: RingState, command: Any) -> RingState | Refusal:
        step = command.step if state.step is None else state.step.id
        return seal(state, replace(command, step=step))

    patch_handler(patch, seal, of_any_step)


def child_begins_at_its_first_parents_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step_commands, "max", lambda *args, **kwargs: _first(*args), raising=False)


def _first(*args: Any) -> Any:
    return next(iter(args[0])) if len(args) == 1 else args[0]


def child_in_its_parents_epoch(patch: pytest.MonkeyPatch) -> None:
    born = step_commands._born

    def same_epoch(*args: Any) -> RangeState:
        child = born(*args)
        return replace(child, epoch=0)

    patch.setattr(step_commands, "_born", same_epoch)


def bystander_range_not_continued(patch: pytest.MonkeyPatch) -> None:
    plan_step = ring_steps.plan_step

    def without(**counts: int) -> Any:
        planned = plan_step(**counts)
        return type(planned)(planned.parents, planned.children, None)

    patch.setattr(step_commands, "plan_step", without)


def children_held_by_who_was_not_prepared(patch: pytest.MonkeyPatch) -> None:
    """By one leader's word only, or by nobody's."""
    patch.setattr(step_commands, "_floor_after", lambda state, step: 0)


def range_ids_given_again(patch: pytest.MonkeyPatch) -> None:
    abort = step_commands.cancel_step

    def give_back(state: RingState, why: str) -> RingState:
        assert state.step is not None
        first = state.step.children[0].id
        return replace(abort(state, why), next_range_id=first - 1)

    patch.setattr(step_commands, "cancel_step", give_back)


# --- all ---


def late_duplicate_executed(patch: pytest.MonkeyPatch) -> None:
    apply_command = ring_commands.apply_command

    def again(state: RingState, stamped: Stamped) -> RingState:
        forgotten = {key: each for key, each in state.recent.items() if key != stamped.id}
        return apply_command(replace(state, recent=forgotten), stamped)

    patch.setattr(ring_commands, "apply_command", again)


def refused_command_changes_something(patch: pytest.MonkeyPatch) -> None:
    change = range_commands.change_isr

    def careless(state: RingState, command: Any) -> RingState | Refusal:
        outcome = change(state, command)
        if isinstance(outcome, Refusal) and outcome.reason == "below-floor":
            led = state.ranges[command.range_id]
            assert isinstance(state.ranges, dict)
            state.ranges[led.id] = replace(led, version=led.version + 1)
        return outcome

    patch_handler(patch, change, careless)


def something_not_of_the_commands_counts(patch: pytest.MonkeyPatch) -> None:
    create = topic_commands.create_topic
    calls = iter(range(2**62))

    def counting(state: RingState, command: Any) -> RingState | Refusal:
        return create(state, replace(command, topic_id=UUID(int=next(calls))))

    patch_handler(patch, create, counting)


def patch_handler(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Apply with `new` what is applied with `old`."""
    handlers: Mapping[Any, Any] = {
        kind: new if handler is old else handler for kind, handler in ring_commands._APPLY.items()
    }
    patch.setattr(ring_commands, "_APPLY", handlers)


def mutations() -> Iterator[Mutation]:
    for name, found in list(globals().items()):
        if callable(found) and getattr(found, "__annotations__", {}).keys() == {"patch", "return"}:
            assert name == found.__name__
            yield found


MUTATIONS = list(mutations())


def test_a_ring_without_a_mutation_holds() -> None:
    for seed in range(5):
        assert run_scenario(seed).sent


@pytest.mark.timeout(30)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.__name__ for mutation in MUTATIONS])
def test_a_mutation_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(SEED_COUNT):
        try:
            run_scenario(seed)
        except (AssertionError, KeyError) as error:
            print(f"seed {seed}: {error!r:.300}")
            return
    pytest.fail(f"{mutation.__name__} was not found in {SEED_COUNT} seeds")
