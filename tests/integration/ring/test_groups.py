"""Groups on a ring of three: whichever brokers are asked, and whatever happens to them.

`RING_RUNS=10 pytest tests/integration/ring/test_groups.py` runs each ten times; `RING_SEED=x` makes
the same choices again, at other moments.
"""

import json
import random
from contextlib import ExitStack, suppress
from itertools import permutations
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tailrace.errors import TailraceError
from tailrace.sync import Client
from tailrace_broker.core.ring.arithmetic import token
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
from tests.support.ring.local_ring import TEST_S_MAX, WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.network import Network, own_network, peer_host
from tests.support.ring.ring_faults import FAULTS
from tests.support.ring.seeds import RUNS, seed_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(TEST_S_MAX)]


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("name", FAULTS)
def test_a_group_gets_every_event_in_order_through_any_broker(
    tmp_path: Path, name: str, run: int
) -> None:
    seed = seed_of(run)
    print(f"seed {seed}")
    generator = random.Random(seed)
    fault, load = FAULTS[name], Load()
    with ExitStack() as stack:
        settings = stack.enter_context(fault.grounds(tmp_path))
        ring = stack.enter_context(founded_ring(tmp_path, copies=3, **settings))
        urls = [broker.url for broker in ring.brokers]
        consumers = Consumers(urls, tmp_path, generator, topic_ids(urls[0], 1))
        stack.callback(consumers.kill_all)
        consumers.start_all()
        changes = stack.enter_context(LeaderChanges(ring))
        others = [consumers.kill_one, consumers.send_one_away, consumers.let_one_stand]
        with producing(urls, load, seed) as producers:
            for _ in range(fault.strokes):
                load.wait_for_answers(generator.randint(1, ANSWERS_BETWEEN_MAX))
                consumers.let_go_on(is_time=lambda _: True)
                generator.choice(others)()
                fault.strike(ring, generator)
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


def test_a_coordinator_that_is_cut_off_does_not_deliver_what_was_committed_elsewhere(
    tmp_path: Path,
) -> None:
    """It has the records, and does not know its successor."""
    with (
        own_network(),
        founded_ring(tmp_path, copies=3, peer_host_of=peer_host) as ring,
    ):
        ring.call(0, "POST", "/v1/topics", {"name": "t"})
        with Client(ring.brokers[0].url) as client:
            client.produce("t", b"1", key="k")
            client.register("c", "g", ["t"], on_new_group="startFromEarliest", session_ms=300_000)
        ring.wait_whole()
        alone = coordinator_of_g(ring)
        assert alone is not None
        network = Network(ring.brokers[0].port)
        for one, other in permutations(range(3), 2):
            if alone in (one, other):
                network.cut(one, other)

        others = [other for other in range(3) if other != alone]
        ring.until(lambda: coordinator_of_g(ring, at=others[0]) in others, WHOLE_S_MAX)
        with Client(ring.brokers[others[0]].url) as client:
            ring.until(lambda: has_committed(client, "c"), WHOLE_S_MAX)
        with pytest.raises(HTTPError) as refused:
            ring.call(alone, "POST", "/v1/consumer/poll?consumerId=c", timeout_s=WHOLE_S_MAX)
        with refused.value as answer:
            assert json.loads(answer.read())["type"] == "/v1/problems/no-leader"


def coordinator_of_g(ring: LocalRing, *, at: int = 0) -> int | None:
    """Return who leads the range that the group's name belongs to, as a broker knows."""
    leaders: list[int | None] = [
        each["leader"]
        for each in ring.ring(at)["ranges"]
        if int(each["start"]) <= token(b"g") < int(each["end"])
    ]
    return leaders[0]


def has_committed(client: Client, consumer: str) -> bool:
    """Whether the consumer gets something now, and its commit is stored."""
    with suppress(TailraceError):  # its coordinator is not there yet
        polled = client.poll(consumer, delivery=0)
        if polled.body:
            client.commit(consumer, delivery=polled.delivery)
            return True
    return False
