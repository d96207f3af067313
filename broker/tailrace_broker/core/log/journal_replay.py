"""What of the journal is to be replayed, and what of it proves that something is missing.

Frames are taken in the order of their sequence, files as a ring. A frame that is missing was torn,
or never synced, unless a later one of the same boot says that it was durable: then records are
lost that were acknowledged. When its batches are still known, their partitions are damaged; else
the journal is. What a later boot says counts for nothing: it took for the end what it found.

A cut takes out what stands in frames before its own. It outlives them: of the ring's files the
oldest is the next that is used.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.wire import JOURNAL_BLOCK_BYTES, BatchHeader, align_up
from tailrace_broker.codec.journal import JournalFileHeader, JournalFrame

NO_FILE = -1

# Topic id and partition.
LogKey = tuple[bytes, int]


class JournalRound(NamedTuple):
    """What one file holds; `header` None: its first block was never written, or is damaged."""

    file_index: int
    header: JournalFileHeader | None
    frames: Sequence[JournalFrame]


class JournaledBatch(NamedTuple):
    """A batch and the index of its file, `NO_FILE` when it was set aside from the journal."""

    header: BatchHeader
    stored: memoryview
    file_index: int

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        return self.header.end_offset

    @property
    def last_epoch(self) -> int:
        """Of the log that ends with it."""
        return self.header.epoch


class FrameFlaw(NamedTuple):
    """A frame of which something cannot be read, at a position of its file.

    `is_missing`: nobody can say which batches it had. `is_durable`: a later frame says that it was
    durable, so it may have been acknowledged.
    """

    file_index: int
    position: int
    sequence: int
    is_missing: bool
    is_durable: bool


@dataclass(slots=True)
class JournalReplay:
    """`damaged`: headers of batches that were durable; `missing`: file and sequence of a frame.

    `flaws`: all that is damaged, whether something is lost by it or not.
    """

    batches: dict[LogKey, list[JournaledBatch]] = field(default_factory=dict)
    damaged: dict[LogKey, list[BatchHeader]] = field(default_factory=dict)
    missing: tuple[int, int] | None = None
    flaws: list[FrameFlaw] = field(default_factory=list)
    is_lossy: bool = False  # somebody has accepted that some of it is lost
    next_sequence: int = 1
    last_used: int = 0
    last_boot: int = 0


def plan_replay(rounds: Sequence[JournalRound], accepted: Collection[int] = ()) -> JournalReplay:
    """`rounds` in the order of the ring, which any of them may begin.

    `accepted`: the files of which somebody has accepted that frames are lost.
    """
    replay = JournalReplay(is_lossy=bool(accepted))
    frames = [(frame, each) for each in rounds for frame in each.frames]
    frames.sort(key=lambda each: each[0].sequence)
    for each in rounds:
        if each.header is not None:
            replay.last_boot = max(replay.last_boot, each.header.boot)
            if each.header.first_sequence > replay.next_sequence:
                replay.next_sequence = each.header.first_sequence
                replay.last_used = each.file_index
    for frame, each in frames:
        if frame.sequence >= replay.next_sequence:
            replay.next_sequence, replay.last_used = frame.sequence + 1, each.file_index
    durable = _durable_sequences(rounds)
    replay.flaws = list(_flaws(rounds, durable))
    missing = (
        (each.file_index, each.sequence)
        for each in replay.flaws
        if each.is_missing and each.is_durable and each.file_index not in accepted
    )
    replay.missing = next(missing, None)
    for frame, each in frames:
        for topic_id, partition, end_offset in frame.cuts:
            _cut(replay, (topic_id, partition), end_offset)
        for header, stored in frame.batches:
            key = header.topic_id, header.partition
            batch = JournaledBatch(header, stored, each.file_index)
            replay.batches.setdefault(key, []).append(batch)
        if each.header is not None and frame.sequence < durable[each.header.boot]:
            for header in frame.damaged:
                key = header.topic_id, header.partition
                replay.damaged.setdefault(key, []).append(header)
    return replay


def _cut(replay: JournalReplay, key: LogKey, end_offset: int) -> None:
    """Take out what an earlier frame has of this log above its cut, and what it has lost there."""
    batches, damaged = replay.batches.get(key, []), replay.damaged.get(key, [])
    batches[:] = [each for each in batches if each.end_offset <= end_offset]
    damaged[:] = [each for each in damaged if each.end_offset <= end_offset]


def _durable_sequences(rounds: Sequence[JournalRound]) -> dict[int, int]:
    """By boot: all its frames below were durable, as the latest of them say."""
    durable: dict[int, int] = {}
    for each in rounds:
        if each.header is not None:
            known = [frame.durable_sequence for frame in each.frames]
            boot = each.header.boot
            durable[boot] = max([durable.get(boot, 0), *known])
    return durable


def _flaws(
    rounds: Sequence[JournalRound], durable_sequences: Mapping[int, int]
) -> Iterator[FrameFlaw]:
    """What cannot be read of the frames that each file should hold."""
    for each, following in zip(rounds, [*rounds[1:], *rounds[:1]], strict=True):
        if each.header is None:
            continue  # never used; or torn when it was taken: then nothing was only there
        durable, expected = durable_sequences[each.header.boot], each.header.first_sequence
        position = JOURNAL_BLOCK_BYTES
        for frame in each.frames:
            if frame.sequence != expected:
                yield FrameFlaw(
                    each.file_index, position, expected, is_missing=True,
                    is_durable=expected < durable,
                )  # fmt: skip
            if frame.is_broken_off or frame.damaged or frame.is_walked:
                yield FrameFlaw(
                    each.file_index, frame.position, frame.sequence, is_missing=frame.is_broken_off,
                    is_durable=frame.sequence < durable,
                )  # fmt: skip
            position = align_up(frame.position + frame.size_bytes, JOURNAL_BLOCK_BYTES)
            expected = frame.sequence + 1
        # Where the ring went on, all before was in this file.
        end = following.header.first_sequence if following.header is not None else 0
        if expected < end:
            yield FrameFlaw(
                each.file_index, position, expected, is_missing=True, is_durable=expected < durable
            )
