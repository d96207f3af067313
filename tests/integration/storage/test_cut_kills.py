"""SIGKILL of a follower that appends and cuts, again and again, on the real disk.

A child process runs the storage engine under a scripted leader. This process has the model of its
logs, kills the child, and compares: the kernel goes on, so nothing that was written is lost.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count as count_from
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any, Literal, NamedTuple

import pytest

from tailrace.wire import INVENTORY_FILE
from tailrace_broker.codec.metadata import KnownFiles, decode_inventory
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.storage.inspection.findings import Finding
from tailrace_broker.storage.inspection.journals import check_journal_files
from tailrace_broker.storage.inspection.logs import check_log
from tailrace_broker.storage.journal.file import journal_paths
from tailrace_broker.storage.log.recovery import LogEvidence
from tests.simulation.cuts import mutations, process
from tests.simulation.cuts.model import ModelLog, Operation
from tests.simulation.cuts.mutations import Mutation
from tests.simulation.cuts.process import Found, Life, Message, Note, Stopped, run_life
from tests.simulation.cuts.replica import DURABILITIES, POOL_BYTES, check_recovered, place_in
from tests.simulation.world import Violation
from tests.support.storage.batches import TOPIC_ID

pytestmark = pytest.mark.integration

# The long form, of some minutes: 100000. One in a hundred is cut, and there is a kill for each 300.
BATCHES = int(os.environ.get("CUT_BATCHES", "3000"))
BATCHES_PER_CUT = 100
BATCHES_PER_KILL = 300
MESSAGES_PER_LIFE_MAX = 5 * BATCHES_PER_KILL
ACTIONS_PER_LIFE_MAX = 10 * BATCHES_PER_KILL
CALLS_OF_A_START_MAX = 80
CALLS_OF_A_CUT_MAX = 30
CUT_DELAY_S_MAX = 0.005
AFTER_CUT_S_MAX = 0.002
STUCK_S = 60.0
MUTATION_BATCHES = 20_000
# What a kill may leave of writes that it has cut short.
UNFINISHED = (
    "the last frame is not whole",
    "not proven to have been acknowledged",
    "goes on with what the journal alone has",
)

KINDS_OF_KILLS = ("kills of a start", "kills in a cut", "kills in an append")

# Children are forks of a process that has imported everything: a start takes a tenth of a second.
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", process.__name__])


class Kill(NamedTuple):
    """When a life is to end: after so many messages, then perhaps a cut, then so much later.

    `messages` None: never.
    """

    messages: int | None
    cut: Literal["asked", "answered"] | None = None
    delay_s: float = 0.0


@dataclass
class KilledReplica:
    """Lives of a follower, with the model of its logs; `counts` of what there was."""

    directory: Path
    seed: int
    mutation: Mutation | None = None
    counts: Counter[str] = field(default_factory=Counter)
    models: list[ModelLog] = field(default_factory=lambda: [ModelLog() for _ in DURABILITIES])

    def __post_init__(self) -> None:
        self._generator = random.Random(self.seed)
        self._start_s = 1.0  # what the last start took
        self._is_open = False  # the child, of this life
        self._has_cut = False  # by its last message
        self._data = self.directory / "data"

    def run(self, *, batches: int) -> None:
        """Until there were so many, with their cuts, and kills of each kind. Violation."""
        counts = self.counts
        plans = cycle(
            [
                self._at_a_call_of_a_start,  # the first time, when there are no files
                self._anywhere,
                self._at_a_cut,
                self._at_a_call_of_a_cut,
                self._after_a_cut,
                self._at_a_start,
                self._stop,
            ]
        )
        while (
            counts["batches"] < batches
            or counts["cuts"] < batches // BATCHES_PER_CUT
            or counts["kills"] < batches // BATCHES_PER_KILL
            or not all(counts[kind] for kind in KINDS_OF_KILLS)
        ):
            self._live(*next(plans)())
            self._verify(is_stopped=False)
        self._live(self._life(action_count=0), Kill(None))
        self._verify(is_stopped=True)

    # --- what ends a life ---

    def _anywhere(self) -> tuple[Life, Kill]:
        return self._life(), Kill(self._generator.randint(1, MESSAGES_PER_LIFE_MAX))

    def _at_a_cut(self) -> tuple[Life, Kill]:
        messages = self._generator.randint(1, MESSAGES_PER_LIFE_MAX // 2)
        delay_s = self._generator.uniform(0, CUT_DELAY_S_MAX)
        return self._life(), Kill(messages, "asked", delay_s)

    def _after_a_cut(self) -> tuple[Life, Kill]:
        """What was cut is still in the journal."""
        messages = self._generator.randint(1, MESSAGES_PER_LIFE_MAX // 2)
        delay_s = self._generator.uniform(0, AFTER_CUT_S_MAX)
        return self._life(), Kill(messages, "answered", delay_s)

    def _at_a_call_of_a_cut(self) -> tuple[Life, Kill]:
        cut = self._generator.randint(1, 4)
        call = self._generator.randint(0, CALLS_OF_A_CUT_MAX)
        return self._life(cut=cut, call=call), Kill(4 * MESSAGES_PER_LIFE_MAX)

    def _at_a_start(self) -> tuple[Life, Kill]:
        delay_s = self._generator.uniform(0, self._start_s)
        return self._life(), Kill(0, delay_s=delay_s)

    def _at_a_call_of_a_start(self) -> tuple[Life, Kill]:
        call = self._generator.randint(0, CALLS_OF_A_START_MAX)
        return self._life(call=call), Kill(MESSAGES_PER_LIFE_MAX)

    def _stop(self) -> tuple[Life, Kill]:
        count = self._generator.randint(0, BATCHES_PER_KILL)
        return self._life(action_count=count), Kill(None)

    def _life(self, action_count: int = ACTIONS_PER_LIFE_MAX, **options: Any) -> Life:
        self.counts["lives"] += 1
        number = self.counts["lives"]
        seed = f"{self.seed} {number}"
        return Life(number, self._data, seed, action_count, mutation=self.mutation, **options)

    # --- one life ---

    def _live(self, life: Life, kill: Kill) -> None:
        receiver, sender = _FORKS.Pipe(duplex=False)
        child = _FORKS.Process(target=run_life, args=(sender, life))
        began_s = monotonic()
        child.start()
        sender.close()
        self._is_open = False
        try:
            for message in self._messages(receiver, child, kill):
                self._take(message)
                if isinstance(message, Found):
                    self._start_s = monotonic() - began_s
            child.join()
            self._count_end(child.exitcode)
        finally:
            if child.is_alive():
                child.kill()
                child.join()
            receiver.close()

    def _messages(
        self, receiver: "Connection[Any, Any]", child: ForkServerProcess, kill: Kill
    ) -> Iterator[Message]:
        """All that the child sends until it has ended, killed or not. Violation: it is stuck."""
        timer = Timer(kill.delay_s, child.kill)
        if kill.messages == 0:
            timer.start()
        try:
            for count in count_from(1):
                if not receiver.poll(STUCK_S):
                    raise Violation("the child is stuck")
                message = receiver.recv()
                yield message
                is_due = kill.messages is not None and count >= kill.messages
                if is_due and timer.ident is None and self._is_at(kill.cut):
                    timer.start()
        except (EOFError, OSError):  # it ended, perhaps within a message
            pass
        finally:
            timer.cancel()

    def _is_at(self, cut: Literal["asked", "answered"] | None) -> bool:
        if cut == "asked":
            return self._is_cutting
        return cut is None or self._has_cut

    def _take(self, message: Message) -> None:
        """Apply what the child reports."""
        self._has_cut = False
        match message:
            case Note(partition, change):
                model = self.models[partition]
                before = list(model.under_way)
                change(model)
                for operation in before[: max(0, len(before) - len(model.under_way))]:
                    self._count_done(operation)
            case Found(logs):
                check_recovered(self.models, logs, lost_power=False)
                for model, log in zip(self.models, logs, strict=True):
                    model.recovered(log)
                self._is_open = True
            case Stopped():
                self.counts["stops"] += 1

    def _count_done(self, operation: Operation) -> None:
        if operation.batches is not None:
            self.counts["batches"] += len(operation.batches)
        else:
            self._has_cut = True
            self.counts["resets" if operation.is_reset else "cuts"] += 1

    def _count_end(self, exit_code: int | None) -> None:
        if exit_code == 0:
            return
        if exit_code != -signal.SIGKILL:
            raise Violation(f"the child has ended with {exit_code}")
        self.counts["kills"] += 1
        if not self._is_open:
            self.counts["kills of a start"] += 1
            return
        self.counts["kills in a cut"] += self._is_cutting
        self.counts["kills in an append"] += not self._is_cutting and bool(self._under_way)

    @property
    def _under_way(self) -> list[Operation]:
        return [operation for model in self.models for operation in model.under_way]

    @property
    def _is_cutting(self) -> bool:
        return any(operation.batches is None for operation in self._under_way)

    # --- what is on the disk ---

    def _verify(self, *, is_stopped: bool) -> None:
        """Violation: `tailrace verify` finds what a kill does not leave.

        The frame that a kill has cut short stays in its file of the journal, also after a clean
        stop of a later process, until that file is used again.
        """
        for finding in self._findings():
            is_normal = not finding.is_bad and any(text in finding.text for text in UNFINISHED)
            if not is_normal or (is_stopped and finding.file.suffix != ".journal"):
                raise Violation(str(finding))
            self.counts["findings"] += 1

    def _findings(self) -> Iterator[Finding]:
        path = self._data / INVENTORY_FILE
        known = decode_inventory(path.read_bytes()) if path.exists() else KnownFiles(())
        found, replay = check_journal_files(list(journal_paths(self._data)))
        yield from found
        for partition in range(len(self.models)):
            evidence = LogEvidence(
                0,
                known.newest_segments.get(TOPIC_ID, {}).get(partition),
                replay.batches.get((TOPIC_ID.bytes, partition), []),
                replay.damaged.get((TOPIC_ID.bytes, partition), []),
                is_journal_lossy=replay.is_lossy,
            )
            place, pool = place_in(self._data, partition), BufferPool(POOL_BYTES)
            yield from check_log(place, evidence, None, pool)


@pytest.mark.timeout(60 + BATCHES // 20)
def test_nothing_reported_is_lost_and_nothing_cut_comes_back_by_kills(tmp_path: Path) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    killed = KilledReplica(tmp_path, seed)
    began_s = monotonic()
    try:
        killed.run(batches=BATCHES)
    finally:
        print(f"{monotonic() - began_s:.0f} s: {dict(killed.counts)}")


@pytest.mark.timeout(120)  # both are found after a few kills
@pytest.mark.parametrize(
    "mutation", [mutations.checkpoint_kept_after_a_cut, mutations.segment_read_beyond_the_next_one]
)
def test_a_mutation_is_found(mutation: Mutation, tmp_path: Path) -> None:
    killed = KilledReplica(tmp_path, random.getrandbits(32), mutation)
    with pytest.raises(Violation):
        killed.run(batches=MUTATION_BATCHES)
