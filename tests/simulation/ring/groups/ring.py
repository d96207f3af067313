"""Consumer groups in the ring: who reads what, what must be true of it, and the end of it."""

from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

from tailrace_broker.codec.batch import decompress_payload
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.core.replication.ranges import logs_of
from tailrace_broker.core.ring.topics import topic_of, topic_with_id
from tailrace_broker.model.group import GROUPS_TOPIC, OnNewGroup, TopicPartition
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState, TopicState
from tailrace_broker.model.topic import Partition, Topic
from tests.simulation.ring.groups.broker import GroupBroker
from tests.simulation.ring.groups.consumers import Consumer, Habits
from tests.simulation.ring.groups.loop import ProcessLoop
from tests.simulation.ring.groups.producers import Producers
from tests.simulation.ring.groups.records import GROUPS_ID
from tests.simulation.ring.groups.truth import GroupsTruth

if TYPE_CHECKING:
    from tests.simulation.ring.data.host import Host
    from tests.simulation.ring.data.replicas import Replicas
    from tests.simulation.ring.process import Process


class GroupsOfRing:
    """`is_calm`: consumers meet no trouble of their own any more."""

    def __init__(self, replicas: "Replicas") -> None:
        self.replicas = replicas
        self.world = replicas.world
        self.counts, self.rules = replicas.world.counts, replicas.world.rules
        self._ever: dict[TopicPartition, Partition] = {}  # gone ones too
        self._topics: dict[UUID, tuple[TopicState, Topic]] = {}  # as they were when last looked at
        self.truth = GroupsTruth(replicas.truth, self.counts, self.rules, self.partition_of)
        replicas.truth.on_lost = self.lost
        self.loop = ProcessLoop(self.world.schedule, lambda happen: happen())
        self.producers, self.has_producers = Producers(self), False
        self.is_calm = False
        self.brokers: dict[int, GroupBroker] = {}  # by process
        self.subscribed: dict[str, tuple[str, ...]] = {}  # topics by group
        self.next_link = count(1).__next__
        self._seen: dict[LogKey, int] = {}  # how much is known to be committed
        self._targets: dict[LogKey, int] | None = None

    def new_broker(self, process: "Process", host: "Host") -> GroupBroker:
        """Of a process that listens."""
        broker = self.brokers[process.number] = GroupBroker(process, host, self)
        return broker

    def broker_at(self, ordinal: int) -> GroupBroker | None:
        """Of the process that clients reach under an ordinal."""
        process = self.world.newest(ordinal)
        return None if process is None else self.brokers.get(process.number)

    # --- consumers ---

    def consume(
        self, name: str, group: str, topics: tuple[str, ...], start: OnNewGroup, habits: Habits
    ) -> None:
        """A consumer comes."""
        self.subscribed[group] = tuple(sorted({*topics, *self.subscribed.get(group, ())}))
        consumer = Consumer(self, name, group, topics, start, habits)
        self.loop.spawn(consumer.live())

    def produce(self, name: str) -> None:
        """A producer comes that numbers what it sends."""
        self.has_producers = True
        self.loop.spawn(self.producers.live(name))

    def living(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """Those that exist."""
        return tuple(each for each in topics if each in self.replicas.state.topics)

    def partition_of(self, tp: TopicPartition) -> Partition | None:
        """As it is committed; None: its topic is gone."""
        topic = self.topic(tp.topic_id)
        there = None if topic is None else topic.find(tp.partition)
        return there or self._ever.get(tp)

    def topic(self, topic_id: UUID) -> Topic | None:
        """As it is committed, or was last; None: there was none."""
        state = self.replicas.state
        known = self._topics.get(topic_id)
        found = topic_with_id(state, topic_id)
        if found is not None and (known is None or known[0] is not found):
            known = self._topics[topic_id] = found, topic_of(state, found)
        return None if known is None else known[1]

    def note(self, state: RingState) -> None:
        """Know partitions when they are gone, whose records count as taken by retention."""
        for topic in state.topics.values():
            found = topic_of(state, topic)
            for each in found.partitions:
                self._ever[TopicPartition(topic.id, each.partition)] = each
            if found.partitions and found.partitions[-1].partition >= len(found.partitions):
                for tp, known in self._ever.items():
                    is_gone = tp.topic_id == topic.id and found.find(tp.partition) is None
                    if is_gone and known.sealed_end is not None:
                        self.truth.gone(tp, known.sealed_end)

    # --- what the ring does ---

    def changed(self, after: RingState) -> None:
        """The committed state differs."""
        self.truth.changed(after)

    def lost(self, key: LogKey, end: int) -> None:
        """A `written` topic has lost what is above."""
        self.truth.lost(key, end, self.replicas.records.last_number)
        self.producers.lost(key, end)
        self._seen[key] = min(end, self._seen.get(key, 0))

    def advanced(self, host: "Host", key: LogKey, high_watermark: int) -> None:
        """All below is committed there."""
        hosted = host.hosted[key]
        first = max(self._seen.get(key, 0), hosted.log.start)
        if key.topic_id != GROUPS_ID:
            self.producers.advanced(host, key, range(first, high_watermark))
            self._seen[key] = max(first, high_watermark)
            return
        for offset in range(first, high_watermark):
            entry = hosted.log.entries[offset - hosted.log.start]
            batch = self.replicas.records.batch(key, hosted.range_id, offset, entry)
            columns = decompress_payload(batch.header, batch.contents())
            for record in unpack_columns(batch.header, columns):
                name, contents = (record.key or b"").decode(), bytes(record.value or b"")
                self.truth.stored_event(name, contents, entry.value)
        self._seen[key] = max(first, high_watermark)

    # --- the end ---

    def healed(self) -> None:
        """From now on every group reads to the end: one more consumer of each sees to it."""
        self.is_calm = True
        calm = Habits(names=True)
        for group, topics in sorted(self.subscribed.items()):
            self.consume(f"last-of-{group}", group, topics, "startFromEarliest", calm)

    def lacking(self) -> str | None:
        """What a group has not read of what was there when the ring was whole again."""
        if self._targets is None:
            self._targets = {
                key: hosted.ends.high_watermark
                for host in self.replicas.hosts()
                for key, hosted in host.hosted.items()
                if hosted.range_id in host.led
            }
        for topic in self.replicas.state.topics.values():
            for key, _ in logs_of(topic):
                for group, topics in self.subscribed.items():
                    if topic.name in topics and topic.name != GROUPS_TOPIC:
                        tp = TopicPartition(*key)
                        partition = self.partition_of(tp)
                        assert partition is not None
                        dealt = self.truth.dealt.get((group, tp), partition.first_offset)
                        target = partition.sealed_end or self._targets.get(key, 0)
                        if dealt < target:
                            return f"group {group} has dealt with {dealt} of {target} in {key}"
        return None

    def close(self) -> None:
        """The scenario ends, however it does."""
        for broker in self.brokers.values():
            broker.loop.abandon()
        self.loop.abandon()
