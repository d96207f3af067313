"""Groups on a ring of three: whichever brokers are asked, and whichever are killed.

`RING_RUNS=10 pytest tests/integration/ring/test_groups.py` runs each ten times; `RING_SEED=x` makes
the same choices again, at other moments.
"""

import random
import threading
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from time import monotonic_ns

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import free_ring_port
from tests.support.groups.group_history import Span, repeat_count, violations
from tests.support.groups.group_load import (
    ANSWERS_BETWEEN_MAX,
    CONSUMERS,
    TOPICS,
    Consumers,
    Load,
    find_group,
    history_of,
    producing,
    topic_ids,
    wait_until_read,
)
from tests.support.ring.local_ring import LocalRing, founded_ring
from tests.support.ring.seeds import RUNS, seed_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FAULTS = 4
PAUSE_S = 3.0
WATCH_S = 0.05
ANSWER_S_MAX = 2.0


def kill_and_restart(ring: LocalRing, ordinal: int) -> None:
    ring.kill(ordinal)
    ring.brokers[ordinal].start()
    ring.wait_ready(ordinal)


def stop_and_restart(ring: LocalRing, ordinal: int) -> None:
    """SIGTERM: others lead first."""
    ring.brokers[ordinal].stop()
    ring.brokers[ordinal].start()
    ring.wait_ready(ordinal)


def pause(ring: LocalRing, ordinal: int) -> None:
    """Longer than it takes to be suspected."""
    ring.pause(ordinal)
    threading.Event().wait(PAUSE_S)
    ring.resume(ordinal)
    ring.wait_ready(ordinal)


class LeaderChanges:
    """When ranges, and with them coordinators, may have changed their leaders.

    A new coordinator knows no open delivery, and what polls have confirmed as far as it was stored.
    """

    def __init__(self, ring: LocalRing) -> None:
        self.spans: list[Span] = []
        self._ring = ring
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "LeaderChanges":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        known, known_ns = self._epochs(), monotonic_ns()
        while not self._is_over.wait(WATCH_S):
            begun_ns = monotonic_ns()
            epochs = self._epochs()
            if epochs is not None and epochs != known:
                self.spans.append(Span(known_ns, monotonic_ns()))
                known = epochs
            if epochs is not None:
                known_ns = begun_ns

    def _epochs(self) -> list[int] | None:
        """None: nobody says."""
        for ordinal, broker in enumerate(self._ring.brokers):
            if broker.is_running() and ordinal not in self._ring.paused:
                with suppress(OSError, HTTPException):
                    found = self._ring.call(
                        ordinal, "GET", "/v1/ring?consistent=true", timeout_s=ANSWER_S_MAX
                    )
                    return [each["epoch"] for each in found["ranges"]]
        return None


BROKER_FAULTS = {"killed": kill_and_restart, "stopped": stop_and_restart, "paused": pause}


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", BROKER_FAULTS)
def test_a_group_gets_every_event_in_order_through_any_broker(
    tmp_path: Path, name: str, run: int
) -> None:
    seed = seed_of(run)
    print(f"seed {seed}")
    generator = random.Random(seed)
    load = Load()
    with ExitStack() as stack:
        ring = stack.enter_context(founded_ring(tmp_path, port=free_ring_port(), copies=3))
        urls = [broker.url for broker in ring.brokers]
        consumers = Consumers(urls, tmp_path, generator, topic_ids(urls[0], 1))
        stack.callback(consumers.kill_all)
        for _ in range(CONSUMERS):
            consumers.start()
        changes = stack.enter_context(LeaderChanges(ring))
        others = [consumers.kill_one, consumers.send_one_away, consumers.let_one_stand]
        with producing(urls, load, seed) as producers:
            for _ in range(FAULTS):
                load.wait_for_answers(generator.randint(1, ANSWERS_BETWEEN_MAX))
                consumers.let_go_on(is_time=lambda _: True)
                generator.choice(others)()
                BROKER_FAULTS[name](ring, generator.randrange(3))
            consumers.let_go_on(is_time=lambda _: True)
        with Client(urls[generator.randrange(3)]) as client:
            wait_until_read(client)
            exit_codes = consumers.send_all_away()
            assert set(exit_codes) == {0}, consumers.log_path.read_text()
            details = find_group(client)
            ends = client.offsets(TOPICS)

    history = history_of(producers, consumers, ends, changes.spans)
    print(
        f"{len(history.sent_ids)} sent, {len(history.acknowledged)} acknowledged, "
        f"{repeat_count(history.deliveries)} came again, {len(consumers.notes_paths)} consumers"
    )
    assert violations(history) == []
    assert (details.info.lag, details.info.members) == (0, 0), "what a goodbye stored is gone"
