"""Groups while their ring grows or is re-sliced: consumers at random brokers read on, over the
steps' lineage.

`RING_RUNS=10` and `RING_SEED=x` as in test_groups.
"""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.groups.group_history import repeat_count, violations
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
from tests.support.ring.leader_changes import LeaderChanges
from tests.support.ring.local_ring import founded_ring
from tests.support.ring.ring_steps import reslice_to, step_to
from tests.support.ring.seeds import RUNS, seed_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST, LAST = 3, 5
COUNTS = (4, 8, 2)  # of partitions in each range


@pytest.mark.parametrize("grows", [True, False], ids=["grow", "re-slice"])
@pytest.mark.parametrize("run", range(RUNS))
def test_a_group_reads_on_over_steps_of_its_ring(tmp_path: Path, run: int, grows: bool) -> None:
    seed = seed_of(run)
    print(f"seed {seed}")
    generator, load = random.Random(seed), Load()
    count = LAST if grows else FIRST
    with ExitStack() as stack:
        ring = stack.enter_context(founded_ring(tmp_path, count=count, founders=FIRST, copies=3))
        urls = [broker.url for broker in ring.brokers[:FIRST]]
        consumers = Consumers(urls, tmp_path, generator, topic_ids(urls[0], 2))
        stack.callback(consumers.kill_all)
        consumers.start_all()
        changes = stack.enter_context(LeaderChanges(ring))
        others = [consumers.kill_one, consumers.send_one_away, consumers.let_one_stand]
        with producing(list(urls), load, seed) as producers:
            for number in range(FIRST + 1, LAST + 1) if grows else COUNTS:
                load.wait_for_answers(generator.randint(1, ANSWERS_BETWEEN_MAX))
                consumers.let_go_on(is_time=lambda _: True)
                generator.choice(others)()
                if grows:
                    step_to(ring, number)
                    ring.wait_ready(number - 1)
                    urls.append(ring.brokers[number - 1].url)  # of consumers that start now
                else:
                    for topic in TOPICS:
                        reslice_to(ring, number, topic=topic)
                consumers.send_one_away()
            load.wait_for_answers(ANSWERS_BETWEEN_MAX)
            consumers.let_go_on(is_time=lambda _: True)
        with Client(urls[generator.randrange(len(urls))]) as client:
            wait_until_read(client)
            exit_codes = consumers.send_all_away()
            assert set(exit_codes) == {0}, consumers.log_path.read_text()
            details = find_group(client)
            ends = client.offsets(TOPICS)

    history = history_of(producers, consumers, ends, changes.spans)
    print(
        f"{len(history.sent_ids)} sent, {len(history.acknowledged)} acknowledged, "
        f"{repeat_count(history.deliveries)} came again, {len(consumers.notes_paths)} consumers, "
        f"{sum(end.state == 'sealed' for end in ends)} of {len(ends)} partitions sealed"
    )
    assert violations(history) == []
    states = {(each.topic, each.partition): each.state for each in details.partitions}
    assert {each.state for each in ends} == {"open", "sealed"}
    for end in ends:
        expected = "done" if end.state == "sealed" else "open"
        assert states[end.topic, end.partition] == expected, end
    assert (details.info.lag, details.info.members) == (0, 0), "what a goodbye stored is gone"
