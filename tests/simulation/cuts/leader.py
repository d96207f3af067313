"""A scripted leader: it appends stored batches to a replica, changes epochs, cuts and resets.

It knows from answers what is written, durable and cut, and notes it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

from tailrace_broker.codec.batch import StoredBatch, stamp_batch, verified_batches
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendFailed,
    AppendOutcome,
    CutOutcome,
    LogIsCut,
    Misfit,
)
from tests.simulation.cuts.model import ModelLog, Operation
from tests.simulation.cuts.replica import KIBIBYTE, Replica, check_windows, model_of
from tests.simulation.world import FIRST_DAY_US, Violation
from tests.support.storage.batches import Event, body_of, place_of

VALUE_BYTES = [20, 20, 200, 3 * KIBIBYTE]
LARGE_VALUE_BYTES = [9 * KIBIBYTE, 20 * KIBIBYTE]
FLUSH_SECONDS_MAX = 3.0
# Of one producer, so that a log remembers all of them (`WindowLimits`).
SEQUENCES_PER_PRODUCER = 500


@dataclass(frozen=True, slots=True)
class Script:
    """How often a leader does what, in relation to all else, and how long it pauses."""

    append: int = 20
    append_large: int = 8
    cut: int = 10
    reset: int = 2
    commit: int = 5
    pause: int = 8
    settle: int = 4
    spill: int = 4
    flush: int = 6
    trim: int = 2
    pauses_s: Sequence[float] = (0, 0, 0.0001, 0.002, FLUSH_SECONDS_MAX)


@dataclass
class ScriptedLeader:
    """Drives one life of a follower."""

    replica: Replica
    generator: random.Random
    epoch: int
    next_sequence: int
    script: Script = Script()
    committed: list[int] = field(default_factory=list)
    sent: Sequence[list[StoredBatch]] | None = None  # in all lives; None: that is of no interest

    def __post_init__(self) -> None:
        self._under_way: set[asyncio.Future[Any]] = set()
        self.committed = [log.high_watermark for log in self.replica.logs]
        epochs = [each.header.epoch for batches in self.sent or () for each in batches]
        self.epoch = max([self.epoch, *(epoch + 1 for epoch in epochs)])

    @property
    def _models(self) -> list[ModelLog]:
        return self.replica.notes.now

    async def use(self, action_count: int) -> None:
        """Do so many things at random, then wait for what is under way."""
        if self.sent is not None:
            for partition in range(len(self.sent)):
                await self._catch_up(partition)
        weights, calls = zip(*self._actions(), strict=True)
        for _ in range(action_count):
            (call,) = self.generator.choices(calls, weights)
            await call(self.generator.randrange(len(self.replica.logs)))
        await self._settle(0)

    def _actions(self) -> list[tuple[int, Callable[[int], Awaitable[None]]]]:
        script = self.script
        return [
            (script.append, self._append),
            (script.append_large, self._append_large),
            (script.cut, self._cut),
            (script.reset, self._reset),
            (script.commit, self._commit),
            (script.pause, self._pass_time),
            (script.settle, self._settle),
            (script.spill, self._spill),
            (script.flush, self._flush),
            (script.trim, self._trim),
        ]

    # --- batches ---

    async def _append(self, partition: int) -> None:
        self._send(partition, VALUE_BYTES)

    async def _append_large(self, partition: int) -> None:
        self._send(partition, LARGE_VALUE_BYTES)

    def _send(self, partition: int, sizes: list[int]) -> None:
        """Send one to three batches in a message."""
        expected = self._models[partition].expected()
        if self.generator.random() < 0.1:
            self.epoch += 1
        batches: list[StoredBatch] = []
        offset, epoch = expected.end, expected.last_epoch
        self.epoch = max(self.epoch, epoch)
        is_catching_up = self.generator.random() < 0.3 and not expected.failed
        for _ in range(self.generator.randint(1, 3)):
            if is_catching_up:  # others have committed it
                self.committed[partition] = offset
            batches.append(self._batch(partition, offset, epoch, self.generator.choice(sizes)))
            offset, epoch = batches[-1].header.end_offset, self.epoch
        if self.sent is not None:
            self.sent[partition].extend(batches)
        self._append_stored(partition, batches)

    async def _catch_up(self, partition: int) -> None:
        """Send again what this replica has lost with the power, or a part of it: others have it.

        They need not have all: an epoch may begin where the replica had more.
        """
        assert self.sent is not None
        while self.generator.random() < 0.7:
            expected = self._models[partition].expected()
            following = [
                each
                for each in self.sent[partition]
                if each.header.base_offset == expected.end
                and each.header.previous_epoch == expected.last_epoch
            ]
            if not following:
                break
            self._append_stored(partition, [self.generator.choice(following)])
        await self._settle(partition)
        if self.generator.random() < 0.5:
            await self._spill(partition)

    def _append_stored(self, partition: int, batches: Sequence[StoredBatch]) -> None:
        operation = Operation([model_of(batch) for batch in batches])
        note = self.replica.notes.note
        note(partition, methodcaller("asked", operation))
        answered = self._asked()

        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, Appended):
                self._on_append_failed(partition, outcome)
                answered.set_result(None)
                return
            note(partition, methodcaller("done", 1))
            self._check_acknowledged(partition)
            end = self.replica.logs[partition].durable_end
            if self.replica.durabilities[partition].durability == "fsync":
                end = batches[-1].header.end_offset
            note(partition, methodcaller("flushed", end))
            answered.set_result(None)

        misfit = self.replica.logs[partition].append_stored(batches, done)
        if isinstance(misfit, Misfit):
            self._on_misfit(partition, misfit)
            answered.set_result(None)

    def _check_acknowledged(self, partition: int) -> None:
        """Whether it is there, a start must say."""

    def _on_append_failed(self, partition: int, outcome: AppendFailed) -> None:
        raise Violation(f"{partition}: an append failed: {outcome}")

    def _on_misfit(self, partition: int, misfit: Misfit) -> None:
        raise Violation(f"{partition}: {misfit}")

    def _batch(self, partition: int, offset: int, previous: int, size: int) -> StoredBatch:
        count = self.generator.randint(1, 3)
        values = [self.generator.randbytes(size // count) for _ in range(count)]
        producer = (self.next_sequence // SEQUENCES_PER_PRODUCER).to_bytes(16, "big")
        table = encode_table([TableEntry(producer, self.next_sequence, 0, count)])
        self.next_sequence += 1
        place = place_of(
            partition=partition,
            base_offset=offset,
            epoch=self.epoch,
            previous_epoch=previous,
            append_time_us=FIRST_DAY_US,
            high_watermark=self.committed[partition],
        )
        body = body_of([Event(value, None) for value in values], producer_table=table)
        (batch,) = verified_batches(memoryview(b"".join(stamp_batch(body, place).buffers)))
        return batch

    # --- cuts ---

    async def _cut(self, partition: int) -> None:
        """A new leader's log differs from this one somewhere above what is committed."""
        expected = self._models[partition].expected()
        batches = expected.batches[-self.generator.choice([4, 8, 100]) :]
        ends = [each.end_offset for each in batches]
        if [each.base_offset for each in batches[:1]] == [expected.start]:
            ends.append(expected.start)
        ends = [end for end in ends if end >= self.committed[partition]]
        if not ends:
            return
        end = self.generator.choice(ends)
        kept = [each.epoch for each in expected.batches if each.end_offset <= end]
        self.epoch += self.generator.randint(0, 1) or end < expected.end
        epoch = kept[-1] if kept else expected.base_epoch
        self._ask_cut(partition, Operation(None, end, epoch))

    async def _reset(self, partition: int) -> None:
        """A new leader has nothing of this log."""
        expected = self._models[partition].expected()
        end = expected.start + self.generator.randint(0, 2 * (expected.end - expected.start) + 3)
        end = max(end, self.committed[partition])
        epoch = max(self.epoch, expected.last_epoch)
        self.epoch = epoch + 1
        self.committed[partition] = end
        self._ask_cut(partition, Operation(None, end, epoch, is_reset=True))

    def _ask_cut(self, partition: int, operation: Operation) -> None:
        note = self.replica.notes.note
        note(partition, methodcaller("asked", operation))
        answered = self._asked()

        def done(outcome: CutOutcome) -> None:
            if outcome != LogIsCut(operation.end):
                self._on_cut_failed(partition, operation, outcome)
                answered.set_result(None)
                return
            note(partition, methodcaller("done", 1))
            log = self.replica.logs[partition]
            note(partition, methodcaller("flushed", log.durable_end))
            model = self._models[partition]
            if log.log_end != model.end:
                raise Violation(f"{partition}: a cut log ends at {log.log_end}, not {model.end}")
            check_windows(log, model)
            answered.set_result(None)

        self.replica.logs[partition].cut(
            operation.end, operation.epoch, done, is_reset=operation.is_reset
        )

    def _on_cut_failed(self, partition: int, operation: Operation, outcome: CutOutcome) -> None:
        raise Violation(f"{partition}: {operation}: {outcome}")

    # --- the rest ---

    async def _commit(self, partition: int) -> None:
        """Not above where it is being cut; where others have it, above what is durable here."""
        model = self._models[partition]
        least = 2**62 if model.cut_end is None else model.cut_end
        counted = min(model.durable_end, model.end, least)
        if self.generator.random() < 0.3:
            counted = min(model.expected().end, least)
        if counted > self.committed[partition]:
            self.committed[partition] = self.generator.randint(self.committed[partition], counted)
            self.replica.logs[partition].commit(self.committed[partition])

    async def _pass_time(self, _: int) -> None:
        await asyncio.sleep(self.generator.choice(self.script.pauses_s))

    async def _settle(self, _: int) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _spill(self, partition: int) -> None:
        await self.replica.logs[partition].spilled()

    async def _flush(self, partition: int) -> None:
        """Appends go on meanwhile: they are not durable with what was there before."""
        self.replica.logs[partition].flush()

    async def _trim(self, partition: int) -> None:
        """With nothing under way, as retention would below the high watermark."""
        await self._settle(partition)
        log = self.replica.logs[partition]
        starts = [each.base_offset for each in log.segments[1:]]
        starts = [start for start in starts if start <= log.high_watermark]
        if log.high_watermark > log.log_start:
            starts.append(self.generator.randint(log.log_start + 1, log.high_watermark))
        if starts:
            start = self.generator.choice(starts)
            note = self.replica.notes.note
            note(partition, methodcaller("trimming", start))
            await log.trim(start)
            note(partition, methodcaller("trimmed", log.log_start))

    async def prove(self) -> None:
        """All by now is committed, as the headers of two batches say, each in a write of its own.

        Whatever is damaged, one of them is not.
        """
        for partition, log in enumerate(self.replica.logs):
            await self._settle(partition)
            self.committed[partition] = self._models[partition].end
            log.commit(self.committed[partition])
            for _ in range(2):
                model = self._models[partition]
                batch = self._batch(partition, model.end, model.last_epoch, VALUE_BYTES[0])
                self._append_stored(partition, [batch])
                await self._settle(partition)

    def _asked(self) -> "asyncio.Future[None]":
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        answered.add_done_callback(self._under_way.discard)
        return answered
