"""A group under load while broker and consumers are killed: each event comes, and in order.

`KILL_SECONDS=120 pytest tests/integration/groups/test_group_kill.py` kills for longer. A failure
prints its seed; what it decides is who is killed when, not what the machine makes of it.
"""

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import NamedTuple

import pytest

from tailrace.errors import ConnectionFailedError, ProblemError
from tailrace.protocol.group_requests import Form
from tailrace.protocol.group_values import GroupDetails
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.groups.group_consumer import Notes, Wanted, start_consumer
from tests.support.groups.group_history import (
    Acknowledged,
    Goodbye,
    GroupHistory,
    RecordPosition,
    Span,
    repeat_count,
    violations,
)
from tests.support.http.http11 import Connection, document, get

KILL_SECONDS = float(os.environ.get("KILL_SECONDS", "20"))
GROUP = "g"
TOPICS = ["flights", "orders"]
PARTITIONS = 3
PRODUCERS = 4
KEYS = [f"key-{index}" for index in range(8)]
EVENTS_PER_REQUEST_MAX = 10
PRODUCER_PAUSE_S = 0.01
CONSUMERS = 3
SESSION_MS = 1_500
FORMS: list[Form] = ["batch", "json", "ndjson"]
ANSWERS_BETWEEN_MAX = 150
ANSWERS_WAIT_S = 30.0
CATCH_UP_S = 60.0
START_S = 30.0
LEAVE_S = 30.0
PAUSE_S = 0.05


class Load:
    """The reports between producers and the killer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answer_count = 0
        self.is_up = threading.Event()
        self.is_over = threading.Event()

    def note_answer(self) -> None:
        with self._changed:
            self._answer_count += 1
            self._changed.notify_all()

    def wait_for_answers(self, answer_count: int) -> None:
        """So many more."""
        with self._changed:
            wanted = self._answer_count + answer_count
            assert self._changed.wait_for(lambda: self._answer_count >= wanted, ANSWERS_WAIT_S)


@dataclass(slots=True)
class Producer:
    """Sends events with ids of its own, none twice, and notes which were acknowledged, where.

    All producers share the keys.
    """

    name: str
    url: str
    sent_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)

    def run(self, load: Load, seed: int) -> None:
        """Through every death of the broker."""
        generator = random.Random(f"{seed} {self.name}")
        numbers = count()
        with Client(self.url) as client:
            while not load.is_over.wait(PRODUCER_PAUSE_S):
                try:
                    self._produce(client, generator, numbers)
                except ConnectionFailedError:
                    load.is_up.wait(ANSWERS_WAIT_S)
                except ProblemError as error:
                    if not error.retriable:
                        raise
                else:
                    load.note_answer()

    def _produce(self, client: Client, generator: random.Random, numbers: Iterator[int]) -> None:
        topic, key = generator.choice(TOPICS), generator.choice(KEYS)
        event_count = generator.randint(1, EVENTS_PER_REQUEST_MAX)
        ids = [f"{self.name}-{next(numbers)}" for _ in range(event_count)]
        self.sent_ids.update(ids)
        body = b"\n".join(json.dumps({"id": id_, "text": id_ * 20}).encode() for id_ in ids)
        start_ns = monotonic_ns()
        produced = client.produce_lines(topic, body, key=key)
        span = Span(start_ns, monotonic_ns())
        assert produced.count == len(ids)
        for offset, event_id in enumerate(ids, start=produced.offset):
            position = RecordPosition(topic, produced.partition, offset)
            # Keys are those of a topic.
            self.acknowledged.append(Acknowledged(f"{topic} {key}", event_id, position, span))


class Process(NamedTuple):
    """A consumer's."""

    child: subprocess.Popen[bytes]
    notes_path: Path
    start_ns: int
    is_first: bool  # of its consumer

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def send_away(self) -> None:
        """SIGTERM, once it knows what that means."""
        self.child.send_signal(signal.SIGCONT)
        deadline_s = monotonic() + START_S
        while not self.notes_path.exists():
            assert monotonic() < deadline_s
            threading.Event().wait(PAUSE_S)
        self.child.terminate()


class Consumers:
    """The group's processes, and what becomes of them."""

    def __init__(
        self,
        broker: RunningBroker,
        directory: Path,
        generator: random.Random,
        topics: dict[str, str],
    ) -> None:
        self._broker = broker
        self._directory = directory
        self._random = generator
        self._topics = topics
        self._forms: dict[str, Form] = {}
        self._numbers = count()
        self._running: dict[str, Process] = {}
        self._standing_until_s: dict[str, float] = {}
        self._sent_away: list[Process] = []
        self.gave_back: list[Goodbye] = []
        self.log_path = directory / "consumers.log"

    @property
    def notes_paths(self) -> list[Path]:
        return sorted(self._directory.glob("*.notes"))

    def start(self, consumer_id: str | None = None) -> None:
        """A new consumer, or one that was there before."""
        number = next(self._numbers)
        consumer_id = consumer_id or f"c{number}"
        notes_path = self._directory / f"{number}.notes"
        is_first = consumer_id not in self._forms
        wanted = Wanted(
            url=self._broker.url,
            group=GROUP,
            consumer_id=consumer_id,
            topics=self._topics,
            form=self._forms.setdefault(consumer_id, self._random.choice(FORMS)),
            session_ms=SESSION_MS,
            seed=self._random.getrandbits(32),
            notes=str(notes_path),
        )
        start_ns = monotonic_ns()
        child = start_consumer(wanted, self.log_path)
        self._running[consumer_id] = Process(child, notes_path, start_ns, is_first)

    def kill_one(self) -> None:
        """And start it again, or another in its position."""
        consumer_id = self._any()
        process = self._running.pop(consumer_id)
        process.kill()
        self._standing_until_s.pop(consumer_id, None)
        if not process.is_first:
            # What the one before it got may have been on its way to it again: an answer that does
            # not arrive gives its records back.
            killed = Span(process.start_ns, monotonic_ns())
            self.gave_back.append(Goodbye(consumer_id, killed))
        self.start(self._random.choice([consumer_id, None]))

    def send_one_away(self) -> None:
        """It says goodbye; another takes its position."""
        self.start()
        self._send_away(self._any())

    def let_one_stand(self) -> None:
        """Longer than its session, while others take over what it had; then it goes on."""
        consumer_id = self._any()
        self._running[consumer_id].child.send_signal(signal.SIGSTOP)
        self._standing_until_s[consumer_id] = monotonic() + self._random.uniform(0.5, 3.0)

    def let_go_on(self, *, is_time: Callable[[float], bool]) -> None:
        """Those that have waited long enough."""
        for consumer_id, until_s in list(self._standing_until_s.items()):
            if is_time(until_s):
                del self._standing_until_s[consumer_id]
                self._running[consumer_id].child.send_signal(signal.SIGCONT)

    def send_all_away(self) -> list[int]:
        """Exit codes of all that were not killed."""
        for consumer_id in list(self._running):
            self._send_away(consumer_id)
        return [process.child.wait(LEAVE_S) for process in self._sent_away]

    def kill_all(self) -> None:
        """What is left, whatever has gone wrong."""
        for process in (*self._running.values(), *self._sent_away):
            process.kill()

    def _any(self) -> str:
        return self._random.choice(sorted(self._running))

    def _send_away(self, consumer_id: str) -> None:
        process = self._running.pop(consumer_id)
        self._standing_until_s.pop(consumer_id, None)
        process.send_away()
        self._sent_away.append(process)


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


def wait_until_read(client: Client) -> None:
    """The group has dealt with all there is."""
    deadline_s = monotonic() + CATCH_UP_S
    while (details := find_group(client)).info.lag != 0:
        assert monotonic() < deadline_s, details
        threading.Event().wait(PAUSE_S)


def find_group(client: Client) -> GroupDetails:
    """A broker that has just started may still be reading its groups."""
    deadline_s = monotonic() + START_S
    while True:
        try:
            return client.group(GROUP)
        except ProblemError as error:
            if not error.retriable or monotonic() > deadline_s:
                raise
            threading.Event().wait(PAUSE_S)


def topic_ids(broker: RunningBroker) -> dict[str, str]:
    """Of topics that are created here."""
    with Client(broker.url) as client:
        for topic in TOPICS:
            client.create_topic(topic, partitions_per_range=PARTITIONS, durability="written")
    with Connection(broker.port) as public:
        return {
            topic: document(public.exchange(get(f"/v1/topics/{topic}")))["id"] for topic in TOPICS
        }


@pytest.mark.integration
@pytest.mark.timeout(3 * KILL_SECONDS + 180)
def test_a_group_gets_every_event_in_order_whoever_is_killed(tmp_path: Path) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    load = Load()
    with ExitStack() as stack:
        broker = stack.enter_context(start_broker(tmp_path, journal_bytes=8 << 20))
        consumers = Consumers(broker, tmp_path, generator, topic_ids(broker))
        stack.callback(consumers.kill_all)
        for _ in range(CONSUMERS):
            consumers.start()
        producers = [Producer(f"p{number}", broker.url) for number in range(PRODUCERS)]
        load.is_up.set()
        with ThreadPoolExecutor(PRODUCERS) as threads:
            runs = [threads.submit(producer.run, load, seed) for producer in producers]
            try:
                crashes = kill_at_random(broker, load, consumers, generator)
            finally:
                load.is_over.set()
                load.is_up.set()
        for run in runs:
            run.result()  # raises what stopped a producer
        with Client(broker.url) as client:
            wait_until_read(client)
            exit_codes = consumers.send_all_away()
            assert set(exit_codes) == {0}, consumers.log_path.read_text()
            kill_broker(broker, load, crashes)
            details = find_group(client)
            ends = client.offsets(TOPICS)

    notes = Notes(consumers.notes_paths)
    history = GroupHistory(
        sent_ids=set().union(*(producer.sent_ids for producer in producers)),
        acknowledged=[event for producer in producers for event in producer.acknowledged],
        deliveries=notes.deliveries,
        confirmations=notes.confirmations,
        readable={(end.topic, end.partition): end.readable() for end in ends},
        session_ns=SESSION_MS * 10**6,
        crashes=crashes,
        goodbyes=[*notes.goodbyes, *consumers.gave_back],
    )
    repeats = repeat_count(history.deliveries)
    print(
        f"{len(history.sent_ids)} sent, {len(history.acknowledged)} acknowledged, {repeats} came "
        f"again; {len(crashes)} deaths of the broker, {len(consumers.notes_paths)} consumers"
    )
    assert violations(history) == []
    assert repeats, "no kill met an open delivery"
    assert (details.info.lag, details.info.members) == (0, 0), "what a goodbye stored is gone"
