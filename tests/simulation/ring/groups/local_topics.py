"""The topics of one process as the shipped shell knows them, over the logs that its host has."""

import random
from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

import msgspec

from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.commands import CreateTopic
from tailrace_broker.model.errors import NotReadyError, TopicNotFoundError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Registration, RingState
from tailrace_broker.model.topic import Partition, Topic, TopicSettings, is_internal
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.hosted_topic import HostedTopic, LogOrError
from tailrace_broker.topics.lead_proofs import LeadProofs
from tailrace_broker.topics.lineage import SealedRanges, follow
from tailrace_broker.topics.range_leaders import RangeRoles
from tests.simulation.ring.data.host import Host, Hosted
from tests.simulation.ring.groups.logs import ReplicaLog
from tests.simulation.ring.groups.loop import ProcessLoop
from tests.simulation.ring.groups.records import GROUPS_ID, Records
from tests.simulation.ring.violation import Violation

# Until the ring is asked once more for a topic that is not there yet.
CREATE_SECONDS = 0.5


class LocalTopics:
    """What `groups.groups` and the routes need of `topics.topics.Topics`."""

    def __init__(
        self,
        host: Host,
        records: Records,
        generator: random.Random,
        loop: ProcessLoop,
        create: Callable[[CreateTopic], None],
    ) -> None:
        """`create` has a topic created, sooner, later or never."""
        self.auto_create = True
        self._create = create
        self._is_creating = False
        self.local = self
        self.by_name: dict[str, HostedTopic] = {}
        self.internal: dict[str, HostedTopic] = {}
        with loop.running():
            self.proofs = LeadProofs(lambda range_id: loop.call_soon(host.prove_lead, range_id))
        self.roles = RangeRoles(
            lambda ordinal: f"http://{ordinal}", lambda range_id, epoch: None, self._is_led
        )
        self.on_changed: Callable[[str], None] = lambda topic: None
        self.is_ready = False
        self._host = host
        self._records = records
        self._generator = generator
        self._loop = loop
        self._state: RingState | None = None
        self._logs: dict[LogKey, ReplicaLog] = {}
        self._known: tuple[object, ...] = (None,) * 3  # what the topics follow from
        self._sealed = SealedRanges()
        self._stepped: set[str] = set()  # topics whose new partitions were not reported

    async def _is_led(self, range_id: int) -> bool:
        """As `topics.replicas.Replicas.prove_lead`."""
        return self._host.ranges.leads(range_id) is not None and await self.proofs.prove(range_id)

    # --- what the process does ---

    def apply(self, state: RingState, mine: Registration | None) -> None:
        """The roles of this state, before the machines take it."""
        self._state = state
        self._follow_step(state)
        self.roles.apply(state, mine)

    def _follow_step(self, state: RingState) -> None:
        """As `topics.local_topics.LocalTopics` does: what is sealed is so before roles change."""
        sealed = self._sealed.take_new(state)
        for topic in state.topics.values() if sealed else ():
            by_name = self.internal if is_internal(topic.name) else self.by_name
            hosted = by_name.get(topic.name)
            is_same = hosted is not None and hosted.topic.topic_id == topic.id
            if hosted is not None and is_same:
                follow(hosted, state, topic, self._host.ordinal, _damaged)
                self._stepped.add(topic.name)

    def hosts(self) -> None:
        """The host has taken the state, or its logs are others."""
        state, hosted_logs = self._state, self._host.hosted
        if state is None:
            return
        known = (state.topics, state.ranges, hosted_logs)
        if all(one is other for one, other in zip(known, self._known, strict=False)):
            return
        self._known = known
        for key in [*self._logs]:
            log = self._logs[key]
            hosted = self._host.hosted.get(key)
            is_sealed = log.sealed_end is not None and key in self._host.logs
            if not is_sealed and (hosted is None or hosted.ends is not log.hosted.ends):
                del self._logs[key]
                log.closed()
        topics = {each.id: topic_of(state, each) for each in state.topics.values()}
        gone = [each for each in self._names() if each.topic.topic_id not in topics]
        for hosted_topic in gone:
            name = hosted_topic.topic.name
            del (self.internal if is_internal(name) else self.by_name)[name]
        come = [self._open(each) for each in topics.values()]
        come += sorted(self._stepped)
        self._stepped.clear()
        for name in dict.fromkeys([*(each.topic.name for each in gone), *filter(None, come)]):
            self.on_changed(name)

    def advanced(self, key: LogKey) -> None:
        """The high watermark of this log has moved."""
        log = self._logs.get(key)
        if log is not None:
            log.advanced()

    def _names(self) -> Iterator[HostedTopic]:
        yield from self.by_name.values()
        yield from self.internal.values()

    def _open(self, topic: Topic) -> str | None:
        """Its name, when it has just come."""
        by_name = self.internal if is_internal(topic.name) else self.by_name
        logs = [self._log(topic, each) for each in topic.partitions]
        known = by_name.get(topic.name)
        if known is not None and known.topic.topic_id == topic.topic_id:
            known.alter(topic, logs)
            return None
        by_name[topic.name] = HostedTopic(topic, logs, self.roles, ordinal=self._host.ordinal)
        return topic.name

    def _log(self, topic: Topic, partition: Partition) -> LogOrError:
        key, range_id = LogKey(topic.topic_id, partition.partition), partition.range_id
        hosted = self._host.hosted.get(key)
        if partition.sealed_end is not None:
            hosted = self._sealed_log(key, partition)
        if hosted is None:
            return NotReadyError(f'the broker is opening topic "{topic.name}"')
        if key not in self._logs:
            self._logs[key] = ReplicaLog(
                self._host,
                key,
                hosted,
                self.roles.of(range_id),
                self._records,
                self._generator,
                self._loop,
                topic=topic.name,
                settings=topic.settings,
                sealed_end=partition.sealed_end,
            )
        return self._logs[key]

    def _sealed_log(self, key: LogKey, partition: Partition) -> Hosted | None:
        """A whole copy, as it is on the disk."""
        assert self._state is not None
        log = self._host.logs.get(key)
        copies = self._state.ranges[partition.range_id].holders
        if log is None or self._host.ordinal not in copies:
            return None
        end = partition.sealed_end
        assert end is not None
        return Hosted(partition.range_id, LogEnds(log.start, end, end, end), log)

    # --- what the shell asks for ---

    def on_roles_changed(self, call: Callable[[], None]) -> None:
        """Call this when this broker may lead another set of ranges."""
        self.roles.on_changed = call

    def check_ready(self) -> None:
        """NotReadyError before it serves, and when it stops."""
        if not self.is_ready:
            raise NotReadyError("the broker does not serve")

    def find(self, name: str) -> HostedTopic:
        """TopicNotFoundError."""
        self.check_ready()
        if name not in self.by_name:
            raise TopicNotFoundError(f'no topic "{name}"', topic=name)
        return self.by_name[name]

    def find_any(self, name: str) -> HostedTopic:
        """As `find`; the ring's own topics too."""
        self.check_ready()
        return self.internal.get(name) or self.find(name)

    def present(self, name: str) -> HostedTopic | None:
        """The topic, when it is there."""
        return self.by_name.get(name) if self.is_ready else None

    async def find_committed(self, name: str) -> HostedTopic:
        """TopicNotFoundError."""
        return self.find(name)

    async def find_or_create(self, name: str) -> HostedTopic:
        """TopicNotFoundError: scenarios create them."""
        return self.find(name)

    async def internal_topic(self, name: str, settings: TopicSettings) -> HostedTopic:
        """The ring is asked for it, and its client to try again. NotReadyError."""
        if name not in self.internal:
            if not self._is_creating:
                self._is_creating = True
                small = msgspec.structs.replace(settings, partitions_per_range=1)
                self._create(CreateTopic(name, GROUPS_ID, small))
                self._loop.call_later(CREATE_SECONDS, self._may_create)
            raise NotReadyError(f"no topic {name} yet")
        return self.internal[name]

    def _may_create(self) -> None:
        self._is_creating = False

    def gone(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Those that nobody can restore."""
        state = self._state
        assert state is not None
        known = {*(each.id for each in state.topics.values()), *state.deleted}
        return {*topic_ids} - known


def _damaged(place: LogPlace) -> None:
    raise Violation(f"9: a whole copy of {place.topic}/{place.partition} does not end as sealed")
