"""A follower's log against a plain list, over appends, cuts, resets, faults, stops and kills."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.model.append_outcome import Appended, CutFailed, LogIsCut
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tests.support.storage.followers import Follower, follow, stored_batch
from tests.support.storage.storage import FaultyDisk, LogFiles, read_all

SIZES = st.sampled_from([1, 100, BLOCK_BYTES, 80_000])
ACTIONS = st.one_of(
    st.tuples(st.just("append"), SIZES),
    st.tuples(st.just("append"), SIZES),
    st.tuples(st.just("cut"), st.integers(0, 5)),
    st.tuples(st.just("reset"), st.integers(0, 40)),
    st.tuples(st.just("spill"), st.just(0)),
    st.tuples(st.just("fail"), st.integers(0, 9)),
)
CALLS = ["fsync", "unlink", "open", "replace", "ftruncate"]
LIVES = st.lists(st.tuples(st.lists(ACTIONS, max_size=15), st.booleans()), min_size=1, max_size=3)
Action = tuple[str, int]


@dataclass
class Model:
    """What the log holds."""

    start: int = 0
    base_epoch: int = 0
    epoch: int = 1
    batches: list[StoredBatch] = field(default_factory=list)

    @property
    def end(self) -> tuple[int, int]:
        """Offset and epoch."""
        if not self.batches:
            return self.start, self.base_epoch
        header = self.batches[-1].header
        return header.end_offset, header.epoch

    def next_batch(self, size: int) -> StoredBatch:
        """Of the present epoch; it compresses badly."""
        offset, epoch = self.end
        values = [b"%d-%d" % (self.epoch, offset) + bytes(range(256)) * (size // 256), b"2"]
        return stored_batch(values, offset, epoch=self.epoch, previous_epoch=epoch)


async def act(follower: Follower, disk: FaultyDisk, model: Model, action: Action) -> None:
    """Do one thing, until it has gone well."""
    name, argument = action
    match name:
        case "append":
            batch = model.next_batch(argument)
            outcome = await follower.append(batch)
            if isinstance(outcome, Appended):
                model.batches.append(batch)
        case "cut":
            del model.batches[max(0, len(model.batches) - argument) :]
            model.epoch += 1
            await cut(follower, disk, model, is_reset=False)
        case "reset":
            model.start, model.base_epoch, model.batches = argument, model.epoch, []
            model.epoch += 1
            await cut(follower, disk, model, is_reset=True)
        case "spill":
            await follower.log.spilled()
        case _:
            disk.fail(CALLS[argument % len(CALLS)], skipped=argument // 2)


async def cut(follower: Follower, disk: FaultyDisk, model: Model, *, is_reset: bool) -> None:
    """Until the disk takes it."""
    outcome = await follower.cut(*model.end, is_reset=is_reset)
    if isinstance(outcome, CutFailed):
        disk.forget_faults()
        outcome = await follower.cut(*model.end, is_reset=is_reset)
    assert outcome == LogIsCut(model.end[0])


async def live(
    files: LogFiles, disk: FaultyDisk, model: Model, actions: list[Action], *, is_killed: bool
) -> None:
    """One life: what was there is there; act."""
    async with follow(files, segment_bytes=5 * BLOCK_BYTES, is_killed=is_killed) as engine:
        follower = Follower(engine.logs[0])
        log = follower.log
        log.commit(log.log_end)
        found = [bytes(each.contents()) for each in await read_all(log)]
        assert found == [bytes(each.contents()) for each in model.batches]
        assert (log.log_start, log.log_end) == (model.start, model.end[0])
        log._tail.replica.high_watermark = log.log_start  # what was read need not be committed
        for action in actions:
            await act(follower, disk, model, action)
        disk.forget_faults()
        assert log.log_end == model.end[0]


@pytest.mark.timeout(120)
# Few: each example opens real files up to four times.
@settings(max_examples=25, deadline=None)
@given(lives=LIVES)
def test_a_followers_log_is_the_list_of_what_was_left(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[list[Action], bool]]
) -> None:
    files = LogFiles(tmp_path_factory.mktemp("log"))
    model = Model()
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FaultyDisk(monkeypatch)
        for actions, is_killed in lives:
            asyncio.run(live(files, disk, model, actions, is_killed=is_killed))
        asyncio.run(live(files, disk, model, [], is_killed=False))
