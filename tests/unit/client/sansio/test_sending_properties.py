"""Whatever is lost on the way: each record is stored once, those of a key in their order.

A made-up ring stores what it is sent, keeps to a request's number as brokers do, and fails as the
scenario says: before it stores, after it, in one partition, or always; leaders move between tries.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st

from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.produced import Produced
from tailrace.protocol.murmur3 import token
from tailrace.sansio.batching import Batch
from tailrace.sansio.sending import Sending, Stored
from tests.support.ring.rings import partition, ring, topic

KEYS = [b"hello", b"SFO", b"ATL", b"k4", b"k5"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(KEYS)),
        st.tuples(
            st.just("answer"),
            st.sampled_from(["stored", "stored", "unheard", "lost", "refused", "partly", "large"]),
        ),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("leaders"), st.lists(st.integers(0, 2), min_size=2, max_size=2)),
        st.tuples(st.just("time"), st.sampled_from([0.01, 0.3, 40.0])),
    ),
    max_size=60,
)
TOO_LARGE = ProblemError(type="body-too-large", title="no", status=413)


class MadeUpRing:
    """Two partitions of one topic, wherever they are led."""

    def __init__(self) -> None:
        self.logs: dict[int, list[int]] = {0: [], 1: []}
        self._known: dict[tuple[int, int], Produced] = {}  # by sequence and partition

    def store(self, batch: Batch[int], partitions: Sequence[int]) -> list[Produced]:
        """What is stored under its number already is a duplicate."""
        tickets: dict[int, list[int]] = defaultdict(list)
        for record in batch.records:
            assert record.token is not None
            tickets[int(record.token >= 0)].append(record.ticket)
        assert batch.sequence is not None
        produced = []
        for key in sorted(tickets.keys() & set(partitions)):
            name = batch.sequence, key
            if name in self._known:
                first = self._known[name]
                assert first.count == len(tickets[key]), "another request under this number"
                produced.append(
                    Produced(key, first.offset, first.count, "fsync", 1, duplicate=True)
                )
            else:
                stored = Produced(key, len(self.logs[key]), len(tickets[key]), "fsync", 1)
                self.logs[key] += tickets[key]
                self._known[name] = stored
                produced.append(stored)
        return produced


class Scenario:
    """One producer, and what its callers were reported."""

    def __init__(self) -> None:
        self.ring = MadeUpRing()
        self.sender = Sending[int]("http://a", now_us=0, id="p", linger_ms=200, batch_bytes=60)
        self.now_s = 0.0
        self.sent: list[bytes] = []
        self.outcomes: dict[int, Stored | TailraceError] = {}
        self.under_way: list[Batch[int]] = []

    def send(self, key: bytes) -> None:
        record = self.sender.outgoing(
            "t", b"", key=key, timestamp_us=None, headers=(), ticket=len(self.sent)
        )
        self.sent.append(key)
        self.sender.add(record, self.now_s)

    def leaders(self, leaders: list[int]) -> None:
        halves = topic(partition(0, -(2**63), leaders[0]), partition(1, 0, leaders[1]))
        self.sender.learn(ring("a", "b", "c"), halves, self.now_s)

    def take(self, _: object = None) -> None:
        while (batch := self.sender.take(self.now_s)) is not None:
            self.under_way.append(batch)
        keys = [{r.key for r in batch.records} for batch in self.under_way]
        for index, here in enumerate(keys):
            assert all(here.isdisjoint(there) for there in keys[:index]), "two requests of one key"

    def answer(self, what: str) -> None:
        """To the request that was sent last, as good as any."""
        self.take()
        if not self.under_way:
            return
        batch = self.under_way.pop()
        error: TailraceError | None = None
        parts: list[Any] = []
        if what in ("stored", "unheard"):
            parts = self.ring.store(batch, (0, 1))
        if what in ("unheard", "lost"):
            error = ConnectionFailedError("http://a", "reset", write_attempted=what == "unheard")
        elif what == "large":
            error = TOO_LARGE
        elif what == "refused":
            error = ProblemError(type="overloaded", title="no", status=429, retriable=True)
        elif what == "partly":
            error = self._partly(batch)
        settled = (
            self.sender.stored(batch, parts)
            if error is None
            else self.sender.failed(batch, error, self.now_s)
        )
        if settled is not None:
            for record, outcome in settled:
                assert record.ticket not in self.outcomes
                self.outcomes[record.ticket] = outcome
            self.sender.batching.finish(batch)

    def _partly(self, batch: Batch[int]) -> ProblemError:
        """The first partition refuses, for now."""
        error = ProblemError(
            type="overloaded", title="no", status=429, members={"partition": 0}, retriable=True
        )
        produced = self.ring.store(batch, (1,))
        if produced:
            error.write_attempted = True
            error.parts = [
                ProblemError(
                    type="overloaded",
                    title="n",
                    status=429,
                    members={"partition": 0},
                    retriable=True,
                ),
                *produced,
            ]
        return error

    def end(self) -> None:
        number = self.sender.batching.hurry()
        for _ in range(10 * len(self.sent) + 10):
            self.now_s += 2
            self.answer("stored")
        assert self.sender.batching.is_done_to(number)


@given(STEPS)
@example(
    [
        ("send", KEYS[0]),
        ("send", KEYS[0]),
        ("time", 0.3),
        ("take", None),
        ("leaders", [1, 0]),
        ("send", KEYS[0]),
        ("time", 0.3),
        ("answer", "large"),
        ("take", None),
    ]
)
def test_each_record_is_stored_once_and_in_the_order_of_its_key(
    steps: list[tuple[str, Any]],
) -> None:
    scenario = Scenario()
    for name, value in [("leaders", [0, 1]), *steps]:
        if name == "time":
            scenario.now_s += value
        else:
            getattr(scenario, name)(value)
    scenario.end()

    assert scenario.outcomes.keys() == set(range(len(scenario.sent)))
    assert scenario.sender.batching.used_bytes == 0
    for log in scenario.ring.logs.values():
        assert len(log) == len(set(log)), "stored twice"
        for key in KEYS:
            of_key = [number for number in log if scenario.sent[number] == key]
            assert of_key == sorted(of_key), "order of a key"
    for number, outcome in scenario.outcomes.items():
        log = scenario.ring.logs[int(token(scenario.sent[number]) >= 0)]
        if isinstance(outcome, Stored):
            assert outcome.partition is not None
            assert outcome.offset is not None
            assert scenario.ring.logs[outcome.partition][outcome.offset] == number
        elif number in log:
            assert outcome.write_attempted, "stored, and reported that it surely is not"
    event(f"failed: {any(isinstance(o, TailraceError) for o in scenario.outcomes.values())}")
