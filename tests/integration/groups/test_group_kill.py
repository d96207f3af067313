"""A group under load while broker and consumers are killed: each event comes, and in order.

`KILL_SECONDS=120 pytest tests/integration/groups/test_group_kill.py` kills for longer. A failure
prints its seed; what it decides is who is killed when, not what the machine makes of it.
"""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, monotonic_ns

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.groups.group_history import Span, repeat_count, violations
from tests.support.groups.group_load import (
    ANSWERS_BETWEEN_MAX,
    TOPICS,
    Consumers,
    Load,
    find_group,
    history_of,
    producing,
    topic_ids,
    wait_until_read,
)

KILL_SECONDS = float(os.environ.get("KILL_SECONDS", "20"))


def kill_broker(broker: RunningBroker, load: Load, crashes: list[Span]) -> None:
    """With SIGKILL, and start it again."""
    load.is_up.clear()
    start_ns = monotonic_ns()
    broker.kill()
    crashes.append(Span(start_ns, monotonic_ns()))
    broker.restart()
    load.is_up.set()


def kill_at_random(
    broker: RunningBroker, load: Load, consumers: Consumers, generator: random.Random
) -> list[Span]:
    """Until the time is over; when the broker died."""
    crashes: list[Span] = []
    actions: list[Callable[[], None]] = [
        lambda: kill_broker(broker, load, crashes),
        consumers.kill_one,
        consumers.kill_one,
        consumers.send_one_away,
        consumers.let_one_stand,
    ]
    ends_s = monotonic() + KILL_SECONDS
    while monotonic() < ends_s:
        load.wait_for_answers(generator.randint(1, ANSWERS_BETWEEN_MAX))
        consumers.let_go_on(is_time=lambda until_s: until_s <= monotonic())
        generator.choice(actions)()
    consumers.let_go_on(is_time=lambda until_s: True)
    if not crashes:
        kill_broker(broker, load, crashes)
    return crashes


@pytest.mark.integration
@pytest.mark.timeout(3 * KILL_SECONDS + 180)
def test_a_group_gets_every_event_in_order_whoever_is_killed(tmp_path: Path) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    load = Load()
    with ExitStack() as stack:
        broker = stack.enter_context(start_broker(tmp_path, journal_bytes=8 << 20))
        consumers = Consumers([broker.url], tmp_path, generator, topic_ids(broker.url, 3))
        stack.callback(consumers.kill_all)
        consumers.start_all()
        with producing([broker.url], load, seed) as producers:
            crashes = kill_at_random(broker, load, consumers, generator)
        with Client(broker.url) as client:
            wait_until_read(client)
            exit_codes = consumers.send_all_away()
            assert set(exit_codes) == {0}, consumers.log_path.read_text()
            kill_broker(broker, load, crashes)
            details = find_group(client)
            ends = client.offsets(TOPICS)

    history = history_of(producers, consumers, ends, crashes)
    repeats = repeat_count(history.deliveries)
    print(
        f"{len(history.sent_ids)} sent, {len(history.acknowledged)} acknowledged, {repeats} came "
        f"again; {len(crashes)} deaths of the broker, {len(consumers.notes_paths)} consumers"
    )
    assert violations(history) == []
    assert repeats, "no kill met an open delivery"
    assert (details.info.lag, details.info.members) == (0, 0), "what a goodbye stored is gone"
