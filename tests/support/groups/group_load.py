"""Producers and consumers of a group under load, as programs that can be killed, and their notes.

They ask a broker each of some URLs; which one, and who is killed when, a seed decides.
"""

import json
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import NamedTuple
from urllib.parse import urlsplit

from tailrace.errors import ConnectionFailedError, GroupNotFoundError, ProblemError
from tailrace.protocol.group_requests import Form
from tailrace.protocol.group_values import GroupDetails
from tailrace.sync import Client
from tailrace.values import PartitionOffsets
from tests.support.groups.group_consumer import Notes, Wanted, start_consumer
from tests.support.groups.group_history import (
    Acknowledged,
    Goodbye,
    GroupHistory,
    RecordPosition,
    Span,
)
from tests.support.http.http11 import Connection, document, get

GROUP = "g"
TOPICS = ["flights", "orders"]
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
    urls: Sequence[str]  # each request goes to any of them
    sent_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)

    def run(self, load: Load, seed: int) -> None:
        """Through every death of a broker."""
        generator = random.Random(f"{seed} {self.name}")
        numbers = count()
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(url)) for url in self.urls]
            while not load.is_over.wait(PRODUCER_PAUSE_S):
                try:
                    self._produce(generator.choice(clients), generator, numbers)
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
        urls: Sequence[str],
        directory: Path,
        generator: random.Random,
        topics: dict[str, str],
    ) -> None:
        self._urls = urls
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

    def start_all(self) -> None:
        """The first ones, until one has registered: then the group exists, whatever happens."""
        for _ in range(CONSUMERS):
            self.start()
        deadline_s = monotonic() + START_S
        with Client(self._urls[0]) as client:
            while True:
                try:
                    find_group(client)
                except GroupNotFoundError:
                    assert monotonic() < deadline_s, self.log_path.read_text()
                    threading.Event().wait(PAUSE_S)
                else:
                    return

    def start(self, consumer_id: str | None = None) -> None:
        """A new consumer, or one that was there before."""
        number = next(self._numbers)
        consumer_id = consumer_id or f"c{number}"
        notes_path = self._directory / f"{number}.notes"
        is_first = consumer_id not in self._forms
        wanted = Wanted(
            urls=list(self._urls),
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
        return [self._exit_code(process) for process in self._sent_away]

    def kill_all(self) -> None:
        """What is left, whatever has gone wrong."""
        for process in (*self._running.values(), *self._sent_away):
            process.kill()

    def _exit_code(self, process: Process) -> int:
        """One that does not leave in time says in the log where it stands."""
        try:
            return process.child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.child.send_signal(signal.SIGABRT)
            return process.child.wait()

    def _any(self) -> str:
        return self._random.choice(sorted(self._running))

    def _send_away(self, consumer_id: str) -> None:
        process = self._running.pop(consumer_id)
        self._standing_until_s.pop(consumer_id, None)
        process.send_away()
        self._sent_away.append(process)


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


def topic_ids(url: str, partitions_per_range: int) -> dict[str, str]:
    """Of topics that are created here."""
    with Client(url) as client:
        for topic in TOPICS:
            client.create_topic(
                topic, partitions_per_range=partitions_per_range, durability="written"
            )
    port = urlsplit(url).port
    assert port is not None
    with Connection(port) as public:
        return {
            topic: document(public.exchange(get(f"/v1/topics/{topic}")))["id"] for topic in TOPICS
        }


@contextmanager
def producing(urls: Sequence[str], load: Load, seed: int) -> Iterator[list[Producer]]:
    """Let producers write while the block lasts; what stopped one is raised."""
    producers = [Producer(f"p{number}", urls) for number in range(PRODUCERS)]
    load.is_up.set()
    with ThreadPoolExecutor(PRODUCERS) as threads:
        runs = [threads.submit(producer.run, load, seed) for producer in producers]
        try:
            yield producers
        finally:
            load.is_over.set()
            load.is_up.set()
    for run in runs:
        run.result()


def history_of(
    producers: Sequence[Producer],
    consumers: Consumers,
    ends: Iterable[PartitionOffsets],
    crashes: Sequence[Span],
) -> GroupHistory:
    """What all of them saw."""
    notes = Notes(consumers.notes_paths)
    return GroupHistory(
        sent_ids=set().union(*(producer.sent_ids for producer in producers)),
        acknowledged=[event for producer in producers for event in producer.acknowledged],
        deliveries=notes.deliveries,
        confirmations=notes.confirmations,
        readable={(end.topic, end.partition): end.readable() for end in ends},
        session_ns=SESSION_MS * 10**6,
        crashes=crashes,
        goodbyes=[*notes.goodbyes, *consumers.gave_back],
    )
