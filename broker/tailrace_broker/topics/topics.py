"""The topics of the ring as its users see and change them; what of them lies here is hosted by
`app.local_topics`.

A change is agreed by the ring first; who asked for it is answered when this broker has carried it
out as well.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog

from tailrace_broker.core.node.events import Recovered
from tailrace_broker.core.ring.topic_commands import create_topic
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.commands import (
    AlterTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    PurgeTopics,
    RestoreTopic,
)
from tailrace_broker.model.damage import Loss, LostEnd
from tailrace_broker.model.errors import (
    InvalidTopicNameError,
    NothingLostError,
    NotInTrashError,
    NotReadyError,
    RingRefusedError,
    StoredDataError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace_broker.model.ring_state import DeletedTopic, Refusal, RingState
from tailrace_broker.model.topic import NEW_TOPIC, Topic, TopicSettings, check_topic_name
from tailrace_broker.model.trashed_topic import TrashedTopic
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.files.direct_file import sync_file_system
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.damage_file import record_loss
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.trash import not_in_trash
from tailrace_broker.topics.hosted_topic import HostedTopic
from tailrace_broker.topics.local_topics import LocalTopics
from tailrace_broker.topics.retention import Retention
from tailrace_broker.topics.trash_purger import TrashPurger

# Takes the topic or why there is none, and whether this very call created it.
TopicUse = Callable[[HostedTopic | None, TailraceError | None, bool], None]
# Takes the topic that would be created; raises why it must not be.
TopicCheck = Callable[[Topic], object]

_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(TopicSettings)}

_log = structlog.get_logger()


class Topics:
    """All topics of the ring. State changes on the event loop only."""

    def __init__(
        self,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now_us: Callable[[], int],
        retention: Retention,
        ring: RingNode,
        *,
        url_of: Callable[[int], str],
        auto_create: bool,
        delete_retention_us: int,
        catch_up_memory: ReadMemory,
    ) -> None:
        """`url_of`: the public listener of a broker; `auto_create`: by the first produce;
        `delete_retention_us`: until the trash is purged; `catch_up_memory`: for followers' reads.
        """
        self.is_ready = False
        self.is_time_sure: Callable[[], bool] = lambda: True
        self.auto_create = auto_create
        self._directory = directory
        self._io = io
        self._now_us = now_us
        self._resources: LogResources | None = None
        self._spawn = spawn
        self._ring = ring
        self._creations: dict[str, list[TopicUse]] = {}
        self._retention = retention
        self._delete_retention_us = delete_retention_us
        self._purger = TrashPurger(
            directory.trash,
            io,
            spawn,
            retention.now_us,  # no clock that is set ahead makes a deletion old
            retention_us=delete_retention_us,
            purge_agreed=self._purge_agreed,
        )
        self.local = LocalTopics(
            directory,
            io,
            spawn,
            now_us,
            retention,
            ring,
            url_of=url_of,
            catch_up_memory=catch_up_memory,
        )
        self.local.on_buried(self._look_into_trash)
        self._loop = asyncio.get_running_loop()
        directory.trash.on_full = self._on_full
        self._is_purging = False
        self.by_name = self.local.by_name
        self.internal = self.local.internal  # the broker's own: no listener knows them

    async def recover(self, resources: LogResources, replayed: Replayed) -> Recovered:
        """Recover every log that belongs here by what this broker has applied.

        DiskFullError, StorageFailedError.
        """
        directory, run = self._directory, self._io.run
        self._resources = resources
        recovered = await self.local.recover(resources, replayed)
        # What a killed broker wrote last, found by now and not synced by it.
        await run(partial(sync_file_system, directory.path))
        await run(partial(self._note_stored, directory.inventory))
        await run(directory.trash.spares.fill)
        return recovered

    def _note_stored(self, inventory: Inventory) -> None:
        """Which segments there are, if a killed broker could not note it any more. Blocks."""
        stored = [
            (log.place.topic_id, log.place.partition, log.newest_segment)
            for log in self.local.all_logs()
            if log.has_segments
        ]
        with suppress(StoredDataError):  # the next write to the segment tries again
            inventory.add_segments(stored)

    def serve(self) -> None:
        """Let the listeners in."""
        self.is_ready = True
        self.local.serve()
        self._purger.look()

    async def close(self) -> None:
        """Refuse what comes, wait for the appends under way, close the logs."""
        self.is_ready = False
        self._purger.stop()
        self._retention.stop()
        await self.local.close()
        logs = list(self.local.all_logs())
        await self.local.replicas.stop(logs)
        for log in logs:
            await log.drained()
        if self._resources is not None:
            await self._resources.journal.spill_all()
        for log in logs:
            await log.close()

    def check_ready(self) -> None:
        """NotReadyError until all are recovered, and from a stop on."""
        if not self.is_ready:
            raise self._not_ready()

    def log_ends(self) -> dict[UUID, list[int | None]]:
        """By topic and partition id; null: there is no log here."""
        return {hosted.topic.topic_id: hosted.log_ends() for hosted in self.local.all_hosted()}

    # --- finding ---

    def all(self) -> list[HostedTopic]:
        """By name. NotReadyError."""
        self.check_ready()
        return [self.by_name[name] for name in sorted(self.by_name)]

    def find(self, topic: str) -> HostedTopic:
        """TopicNotFoundError, InvalidTopicNameError, NotReadyError."""
        self.check_ready()
        found = self.by_name.get(topic)
        if found is None:
            check_topic_name(topic)
            state = self._ring.state
            if state is not None and topic in state.topics:  # agreed, and not applied yet
                raise NotReadyError(f'the broker is opening topic "{topic}"')
            raise self._not_found(topic)
        return found

    def find_any(self, topic: str) -> HostedTopic:
        """As `find`; the ring's own topics too."""
        self.check_ready()
        return self.internal.get(topic) or self.find(topic)

    def present(self, topic: str) -> HostedTopic | None:
        """The topic, when it is there and nobody waits for it."""
        return self.by_name.get(topic) if self.is_ready and topic not in self._creations else None

    def with_topic(self, topic: str, use: TopicUse, check: TopicCheck | None = None) -> None:
        """Call `use` with the topic, at once when it is there, else when it has been created.

        Calls for a topic that is being created keep their order. With a `check` that raises
        TailraceError none is created.
        """
        found = self.present(topic)
        if found is not None:
            use(found, None, False)
        elif not self.is_ready:
            use(None, self._not_ready(), False)
        elif topic in self._creations:
            self._creations[topic].append(use)
        else:
            self._create_for(topic, use, check)

    async def find_committed(self, name: str) -> HostedTopic:
        """As `find`; it also finds a topic that another broker has just created.

        NotAgreedError.
        """
        try:
            return self.find(name)
        except (TopicNotFoundError, NotReadyError):
            self.check_ready()
            await self._ring.current()
            await self.local.reached()
            return self.find(name)

    async def find_or_create(self, name: str) -> HostedTopic:
        """As the first produce does. TopicNotFoundError, InvalidTopicNameError."""
        outcome: asyncio.Future[HostedTopic] = asyncio.get_running_loop().create_future()

        def use(hosted: HostedTopic | None, error: TailraceError | None, _: bool) -> None:
            if outcome.cancelled():
                return
            if hosted is not None:
                outcome.set_result(hosted)
            elif error is not None:
                outcome.set_exception(error)

        self.with_topic(name, use)
        return await outcome

    # --- changing: what the ring does not agree on in time is NotAgreedError ---

    async def internal_topic(self, name: str, settings: TopicSettings) -> HostedTopic:
        """The ring's own topic of this name, made when it is first needed; durable on return.

        NotReadyError.
        """
        if name not in self.internal:
            self.check_ready()
            with suppress(TopicExistsError):  # as another version made it
                await self._change(CreateTopic(name, uuid4(), settings), name)
        return self.internal[name]

    async def create(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new; durable on return.

        InvalidTopicNameError, TopicExistsError, NotReadyError.
        """
        self.check_ready()
        check_topic_name(name)
        topic_id = uuid4()
        state = await self._change(CreateTopic(name, topic_id, settings), name)
        created = state.topics.get(name)
        if created is None:
            raise self._not_found(name)  # deleted since
        return topic_of(state, created), created.id == topic_id

    async def alter(self, name: str, changes: Mapping[str, Any]) -> Topic:
        """The topic with these fields of its settings changed; durable on return.

        Changes at the same time keep each other's.

        TopicNotFoundError, InvalidParameterError, NotReadyError, NotAgreedError.
        """
        topic = (await self.find_committed(name)).topic
        msgspec.structs.replace(topic.settings, **changes)  # InvalidParameterError
        wanted = {_WIRE_NAMES[field]: value for field, value in changes.items()}
        state = await self._change(AlterTopic(name, wanted, topic.topic_id), name)
        altered = state.topics.get(name)
        if altered is None or altered.id != topic.topic_id:
            raise self._not_found(name)
        return topic_of(state, altered)

    async def accept_loss(self, name: str, partition: int, *, dry_run: bool) -> LostEnd:
        """Record what a partition has lost, durably, and let it go on behind it.

        TopicNotFoundError, PartitionNotFoundError, NotLeaderError, NoLeaderError, NotReadyError,
        NothingLostError, CorruptPartitionError. DiskFullError, StorageFailedError.
        """
        hosted = self.find(name)
        log = hosted.log_of(partition)
        lost = log.lost_end
        if lost is None:
            state = self._ring.state
            owner = None if state is None else state.ranges.get(log.place.range_id)
            has_others = owner is not None and len(owner.isr) > 1
            detail = _whole_end_text(log, self._directory.identity.ordinal, has_others=has_others)
            raise NothingLostError(detail, topic=name, partition=partition)
        if not dry_run:
            loss = Loss(lost.first_offset, lost.next_offset, self._now_us())
            await self._io.run(partial(record_loss, log.place.directory, loss))
            _log.warning(
                "loss.accepted",
                topic=name,
                partition=partition,
                first_offset=lost.first_offset,
                last_offset=lost.proven_end - 1,
                next_offset=lost.next_offset,
            )
            await self.local.reopen(hosted.topic.topic_id, partition)
            hosted.log_of(partition)  # the disk may refuse it
        return lost

    async def delete(self, name: str) -> None:
        """Take the topic away, durably; its data moves to the trash.

        TopicNotFoundError, NotReadyError, NotAgreedError.
        """
        topic_id = (await self.find_committed(name)).topic.topic_id
        await self._change(DeleteTopic(name, self._now_us(), topic_id), name)
        await self.local.buried(topic_id)

    async def restore(self, wanted: str, new_name: str | None) -> Topic:
        """Bring the deleted topic of this name or id back, durably, with its records.

        NotInTrashError, InvalidParameterError, TopicExistsError, InvalidTopicNameError,
        NotReadyError. DiskFullError, StorageFailedError: it is back, and cannot be opened yet.
        """
        self.check_ready()
        find = partial(self._directory.trash.find, wanted)
        try:
            deleted = await self._io.run(find)
        except NotInTrashError:  # another broker may just have deleted it
            await self._ring.current()
            await self.local.reached()
            await self.local.all_buried()
            deleted = await self._io.run(find)
        name = new_name or deleted.name
        check_topic_name(name)
        state = await self._change(RestoreTopic(deleted.topic_id, new_name), name)
        restored = state.topics.get(name)
        if restored is None or restored.id != deleted.topic_id or name not in self.by_name:
            raise self._not_found(name)
        failure = self.by_name[name].failure()
        if failure is not None:
            raise failure
        return topic_of(state, restored)

    async def _change(self, command: Command, name: str) -> RingState:
        """The state with the command applied, here too; `name`: of the topic, for what is
        refused: by a state that is applied here as well.
        """
        try:
            await self._ring.change(command)
        except RingRefusedError as error:
            await self.local.reached()
            raise self._refused(error, name) from error
        state = self._ring.state
        assert state is not None
        await self.local.reached()
        return state

    def _refused(self, error: RingRefusedError, name: str) -> TailraceError:
        match error.refusal.reason:
            case "topic-exists":
                return TopicExistsError(error.detail, topic=name)
            case "topic-not-found":
                return self._not_found(name)
            case "not-in-trash":
                return not_in_trash(name)
            case "invalid-topic-name":
                return InvalidTopicNameError(error.detail, topic=name)
            case _:
                return error

    def _not_ready(self) -> NotReadyError:
        if self._ring.is_joining:
            return NotReadyError(
                "the broker waits to be founded, admitted or registered; GET /v1/ring says which"
            )
        return NotReadyError("the broker is recovering its data, or stopping")

    def _not_found(self, topic: str) -> TopicNotFoundError:
        reason = "" if self.auto_create else " (autoCreateTopics is off)"
        return TopicNotFoundError(
            f'topic "{topic}" does not exist{reason}; create it with POST /v1/topics', topic=topic
        )

    # --- the trash ---

    async def trashed(self) -> list[TrashedTopic]:
        """Deleted topics whose data is still here, the latest deletion first. NotReadyError."""
        self.check_ready()

        def listed() -> list[TrashedTopic]:
            return [
                TrashedTopic(
                    each.deleted.topic,
                    each.deleted.deleted_us,
                    each.deleted.deleted_us + self._delete_retention_us,
                    each.size_bytes(),
                )
                for each in self._directory.trash.restorable()
            ]

        return await self._io.run(listed)

    def gone(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Those of these topics that neither are there nor can be restored any more.

        As the ring has agreed: a topic may be open here only later, or not at all.
        """
        state = self._ring.state
        assert state is not None
        known = {*(topic.id for topic in state.topics.values()), *state.deleted}
        return {*topic_ids} - known

    def _look_into_trash(self) -> None:
        if self.is_ready:
            self._purger.look()

    def _purge_agreed(self, before_us: int) -> int | None:
        """As the metadata's leader, have the ring forget what was deleted by then; when the oldest
        that it has not forgotten was. Nothing is, while nobody can say what time it is.
        """
        state = self._ring.state
        if state is None or not self.is_ready:
            return None
        gone = [each for each in state.deleted.values() if each.deleted_us <= before_us]
        may_purge = self._ring.is_metadata_leader and not self._is_purging
        if gone and may_purge and self.is_time_sure():
            self._is_purging = True
            self._spawn(self._forget_deleted(gone))
        return min((each.deleted_us for each in state.deleted.values()), default=None)

    def _on_full(self) -> None:
        """Called in an I/O thread."""
        self._loop.call_soon_threadsafe(self._purge_oldest_kept)

    def _purge_oldest_kept(self) -> None:
        """The disk is full: have the ring forget what this broker keeps of a deleted topic."""
        state = self._ring.state
        if state is None or not self.is_ready or self._is_purging:
            return
        kept = [each for key, each in state.deleted.items() if key in self.local.kept_deleted]
        if kept:
            self._is_purging = True
            oldest = min(kept, key=lambda each: each.deleted_us)
            self._spawn(self._forget_deleted([oldest]))

    async def _forget_deleted(self, gone: Sequence[DeletedTopic]) -> None:
        command = PurgeTopics({each.topic.id: each.deleted_us for each in gone})
        try:
            await self._ring.change(command)
        except TailraceError as error:  # the next look tries again
            _log.warning("purge.failed", detail=error.detail)
        self._is_purging = False

    # --- the first produce ---

    def _create_for(self, topic: str, use: TopicUse, check: TopicCheck | None) -> None:
        """First produce to an unknown topic."""
        try:
            check_topic_name(topic)
            if not self.auto_create:
                raise self._not_found(topic)
        except TailraceError as error:
            use(None, error, False)
            return
        refusal = check and self._refusal(topic, check)
        if refusal is None:
            self._creations[topic] = [use]
            self._spawn(self._create_and_use(topic))
        else:
            self._spawn(self._find_and_use(topic, use, refusal))

    def _refusal(self, topic: str, check: TopicCheck) -> TailraceError | None:
        """Why a new topic must not be created, when it would be one."""
        state = self._ring.state
        if state is None:
            return self._not_ready()
        planned = create_topic(state, CreateTopic(topic, uuid4(), NEW_TOPIC))
        if not isinstance(planned, Refusal):
            try:
                check(topic_of(planned, planned.topics[topic]))
            except TailraceError as error:
                return error
        return None

    async def _find_and_use(self, topic: str, use: TopicUse, refusal: TailraceError) -> None:
        """Refuse, unless another broker has created the topic, maybe with other settings."""
        try:
            found = await self.find_committed(topic)
        except TopicNotFoundError:
            use(None, refusal, False)
        except TailraceError as error:
            use(None, error, False)
        else:
            use(found, None, False)

    async def _create_and_use(self, topic: str) -> None:
        error: TailraceError | None = None
        is_new = False
        try:
            with suppress(TopicExistsError):  # with other settings: that one is meant
                _, is_new = await self.create(topic, NEW_TOPIC)
        except TailraceError as failed:
            error = failed
        if not self.is_ready:
            error = self._not_ready()  # the logs are being closed
        found = self.by_name.get(topic)
        if found is None and error is None:
            error = self._not_found(topic)  # deleted since
        uses = self._creations.pop(topic)
        for index, use in enumerate(uses):  # the first one has created it for all
            use(None if error else found, error, is_new and index == 0)


def _whole_end_text(log: PartitionLog, ordinal: int, *, has_others: bool) -> str:
    """Why there is no end to give up. `has_others`: other replicas in sync have all offsets."""
    place = log.place
    whose = f'partition {place.partition} of topic "{place.topic}"'
    damages = [each for each in log.quarantined if not each.is_accepted]
    if not damages:
        return f"{whose} takes events, or is sealed, and has lost nothing that has to be accepted"
    first, *others = damages
    more = f" and {len(others)} more" if others else ""
    unreadable = (
        f"{whose} has not lost its end, but cannot read offsets {first.first_offset}-"
        f"{first.end_offset - 1}{more}"
    )
    if has_others:
        return f"{unreadable}: this broker fetches them from another replica (tailrace ring status)"
    return (
        f"{unreadable}: restore the files that the broker's log names, and start "
        f"it again; or give up the offsets of range {place.range_id}: tailrace ring accept-loss "
        f"{place.range_id} --broker {ordinal}"
    )
