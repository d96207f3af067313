"""The main job's chaos: a leader is killed while events are produced, and started again.

Every event must be acknowledged all the same, and be in the topic once. It decides nothing about
brokers but which one is killed.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self

from examples import up_steps
from examples.up_events import Events, UpError
from examples.up_report import count_of, row
from examples.up_spark_job import SparkJob, SparkResult, spark_result, spark_words
from tailrace.errors import TailraceError
from tailrace.local.broker import LocalBroker
from tailrace.producer import Producer, Sent
from tailrace.sansio.batching import Outgoing
from tailrace.sansio.sending import Outcome, Stored
from tailrace.sync import Client

PASS_EVENTS = 5_000  # the job's first events, produced again and again
PACE_EVENTS = 100
PACE_SECONDS = 0.05  # 2,000 events a second
CALM_SECONDS = 1.0  # of acknowledgements before the kill, and after them before the start
WAIT_SECONDS_MAX = 60.0
FLIGHT_SECONDS = 0.2  # until an answer from before the kill has been taken in
POLL_SECONDS = 0.02
NOWHERE = -1  # the partition of what was acknowledged without one


class Killed(NamedTuple):
    """A broker that led `partitions` when it was killed, at `at_s` by this process's clock."""

    ordinal: int
    partitions: Sequence[int]
    at_s: float


class Load:
    """Whole passes over some events, produced in the background; at the block's end it stops.

    The current pass ends first. `acknowledged`: by partition when events were acknowledged.
    """

    def __init__(self, client: Client, events: Events) -> None:
        first = slice(PASS_EVENTS)
        self.events = Events(events.topic, events.key, events.keys[first], events.values[first])
        self.pass_count = 0
        self.acknowledged: defaultdict[int, list[float]] = defaultdict(list)
        self._error: TailraceError | None = None
        self._is_over = threading.Event()
        self._client = client
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None:
            self._check()

    @property
    def acknowledged_count(self) -> int:
        """Of all events."""
        return sum(map(len, self.acknowledged.values()))

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """UpError when an event is refused, or it is not so after a long time."""
        deadline_s = time.monotonic() + WAIT_SECONDS_MAX
        while not is_so():
            self._check()
            if time.monotonic() > deadline_s:
                raise UpError(f"{what} did not come within {WAIT_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)

    def _run(self) -> None:
        try:
            with Producer(self._client, on_outcome=self._note) as producer:
                while not self._is_over.is_set():
                    self._produce_all(producer)
                    self.pass_count += 1
        except TailraceError as error:
            self._error = self._error or error

    def _produce_all(self, producer: Producer) -> None:
        events = self.events
        for index, (key, value) in enumerate(zip(events.keys, events.values, strict=True), 1):
            producer.send(events.topic, value, key=key)
            if index % PACE_EVENTS == 0 or index == len(events.values):
                time.sleep(PACE_SECONDS)

    def _note(self, _: Outgoing[Sent], outcome: Outcome) -> None:
        if not isinstance(outcome, Stored):
            self._error = self._error or outcome
        else:
            partition = NOWHERE if outcome.partition is None else outcome.partition
            self.acknowledged[partition].append(time.monotonic())

    def _check(self) -> None:
        if self._error is not None:
            raise UpError(f"an event was not acknowledged: {self._error}")


def chaos(
    brokers: Sequence[LocalBroker],
    client: Client,
    events: Events,
    averages: Sequence[str],
    *,
    has_spark: bool,
) -> SparkResult | None:
    """Kill a leader while events are produced and Spark reads them; start it again.

    UpError when an event is not acknowledged, not there once, or the ring does not get whole.
    """
    starts = up_steps.ends_of(client, events.topic)
    victim = choose_victim(client, events.topic)
    others = [broker.url for ordinal, broker in enumerate(brokers) if ordinal != victim]
    with ExitStack() as stack:
        survivor = stack.enter_context(Client(others[0]))
        job = None
        if has_spark:
            words = spark_words(
                [brokers[victim].url, *others],
                events,
                held_count=sum(starts.values()),
                averages=averages,
                follows=True,
            )
            job = stack.enter_context(SparkJob(words))
            with row("streams") as line:
                job.wait_streaming()
                line.text = "Spark follows the topic"
        with Load(survivor, events) as load:
            with row("killed") as line:
                killed = kill_leader(brokers, victim, load, survivor)
                line.text = (
                    f"broker {victim} by SIGKILL: led {count_of(killed.partitions, 'partition')}; "
                    f"acknowledged again after {longest_gap_s(load.acknowledged, killed):.2f} s"
                )
            with row("whole") as line:
                start_again(brokers[victim], load, survivor)
                line.text = f"broker {victim} is back; each range has all its replicas in sync"
        with row("kept") as line:
            count = up_steps.read_back(survivor, load.events, starts, repeat_count=load.pass_count)
            if count != load.acknowledged_count:
                raise UpError(f"{load.acknowledged_count:,} acknowledged, {count:,} read back")
            line.text = (
                f"{load.acknowledged_count:,} events acknowledged, {count:,} read back, each once; "
                f"gap at most {longest_gap_s(load.acknowledged, killed):.2f} s"
            )
        if job is None:
            return None
        with row("spark") as line:
            held_count = sum(up_steps.ends_of(survivor, events.topic).values())
            return spark_result(line, job, held_count=held_count)


def longest_gap_s(acknowledged: Mapping[int, Sequence[float]], killed: Killed) -> float:
    """How long at most one of its partitions had no acknowledgement, from the kill on.

    A gap that the kill is in began with the last acknowledgement before it.
    """
    gaps_s = [
        later - sooner
        for partition in killed.partitions
        for sooner, later in pairwise(acknowledged[partition])
        if later > killed.at_s
    ]
    return max(gaps_s, default=0.0)


def choose_victim(client: Client, topic: str) -> int:
    """A broker that leads partitions of the topic that hold events."""
    leaders = {row.leader for row in client.offsets([topic]) if row.readable()}
    return random.choice(sorted(leader for leader in leaders if leader is not None))


def kill_leader(brokers: Sequence[LocalBroker], ordinal: int, load: Load, client: Client) -> Killed:
    """SIGKILL the broker while it leads; on return its partitions take events again."""
    load.wait_for(lambda: load.pass_count > 0, "the acknowledgement of the first events")
    time.sleep(CALM_SECONDS)
    led = [
        row.partition
        for row in client.offsets([load.events.topic])
        if row.leader == ordinal and load.acknowledged[row.partition]
    ]
    if not led:
        raise UpError(f"broker {ordinal} leads no partition any more; run it again")
    killed_s = time.monotonic()
    brokers[ordinal].kill()
    load.wait_for(
        lambda: all(load.acknowledged[each][-1] > killed_s + FLIGHT_SECONDS for each in led),
        f"an acknowledgement of each partition that broker {ordinal} led",
    )
    time.sleep(CALM_SECONDS)
    return Killed(ordinal, led, killed_s)


def start_again(broker: LocalBroker, load: Load, client: Client) -> None:
    """Start the killed broker; on return each range has all its replicas in sync."""
    broker.start()
    broker.wait_ready(WAIT_SECONDS_MAX)
    load.wait_for(lambda: is_whole(client), "the full ISR of each range")


def is_whole(client: Client) -> bool:
    """Whether each range has a leader, and all its replicas in sync."""
    return all(
        one.leader is not None
        and {replica.ordinal for replica in one.isr if not replica.ghost} == {*one.replicas}
        for one in client.ring().ranges
    )
