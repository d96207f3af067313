"""A leader whose range takes part in an open step of the ring seals it. A part of the leader.

It waits until each replica that stays in the ring is near, holds appends, and waits until all that
was appended is committed, and flushed by everybody who counts: the trash too, and `written` topics
too, since nobody flushes a sealed log later. Then it proposes the ends of the range's partitions,
again and again until the applied state has them, or the step is gone.

What was proposed may commit late, so nothing is appended in this epoch any more, whatever comes of
the step (SAFETY 4); nor does anybody join the ISR, who would pass for a whole copy. When the step
is gone the leader leads on in the next epoch (`succession`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tailrace_broker.core.replication.events import (
    HoldAppends,
    Propose,
    RangeView,
    ReplicationTiming,
)
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.core.replication.succession import Succession
from tailrace_broker.core.ring.steps import OpenStep
from tailrace_broker.model.commands import AbortStep
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Replica


class Sealing:
    """Of a leader in one epoch. Times are of its own clock.

    `has_reported`: ends of this epoch were proposed, and may commit.
    """

    __slots__ = (
        "_again_ms", "_held_after_ms", "_me", "_open_logs", "_rules", "_since_ms", "_step",
        "_timing", "has_reported",
    )  # fmt: skip

    def __init__(self, me: Replica, timing: ReplicationTiming, rules: Counter[str]) -> None:
        self.has_reported = False
        self._me = me
        self._timing = timing
        self._rules = rules
        self._step: int | None = None
        self._since_ms = 0  # it is open
        self._again_ms = 0
        self._held_after_ms = 0  # of the step
        self._open_logs: list[LogKey] = []  # of these it is not known that they can be sealed

    def step(
        self,
        view: RangeView,
        succession: Succession,
        progress: Mapping[int, Progress],
        counted: Sequence[Progress] | None,
        logs: Mapping[LogKey, LedLog],
        clock_ms: int,
    ) -> list[HoldAppends | Propose]:
        """Hold appends for the view's step; propose the ends, or that the step be aborted.

        `counted`: who counts for the high watermark, beside the leader; None: not all are known.
        """
        step = view.step
        assert step is not None
        if step.id != self._step:
            self._step, self._since_ms, self._again_ms = step.id, clock_ms, clock_ms
            self._held_after_ms = 0
        heard = {self._me.ordinal, *succession.peers.heard}
        effects: list[HoldAppends | Propose] = []
        since_ms, limit_ms = succession.held_ms, self._timing.step_ms
        hindrance = ""
        if since_ms is None:
            hindrance = _what_it_lacks(view, step, logs, heard) or self._who_is_far(
                step, progress, clock_ms
            )
            if not hindrance:
                self._held_after_ms = clock_ms - self._since_ms
                self._rules["leader.holds_for_step"] += 1
                effects += succession.hold_for_step(view.range.epoch, clock_ms)
                self._open_logs = list(step.logs)
                since_ms = clock_ms
            else:
                since_ms, limit_ms = self._since_ms, self._timing.step_wait_ms
        if clock_ms < self._again_ms:
            return effects
        if clock_ms - since_ms >= limit_ms:
            self._rules["leader.aborts_step"] += 1
            why = hindrance or self._who_has_not_stored(counted, logs)
            effects.append(Propose(AbortStep(step.id, view.range.id, why)))
        elif succession.is_holding and not step.is_reported and self._can_seal(step, counted, logs):
            self._rules["leader.seals"] += 1
            self.has_reported = True
            ends = {key: log.ends.written for key, log in logs.items()}
            owner = view.range
            sealed = step.sealed(owner.id, owner.epoch, ends, heard, self._held_after_ms)
            effects.append(Propose(sealed))
        else:
            return effects
        self._again_ms = clock_ms + self._timing.propose_ms
        return effects

    def _who_is_far(self, step: OpenStep, progress: Mapping[int, Progress], clock_ms: int) -> str:
        """Empty: the replicas that stay answer, and are fed; that they lack little the watermark
        says.
        """
        for ordinal in sorted(step.staying - {self._me.ordinal}):
            each = progress.get(ordinal)
            if each is None or not each.is_following:
                return f"broker {ordinal} does not follow its leader"
            if each.seems_dead(clock_ms, self._timing.silence_ms):
                return f"broker {ordinal} does not answer its leader"
        return ""

    def _who_has_not_stored(
        self, counted: Sequence[Progress] | None, logs: Mapping[LogKey, LedLog]
    ) -> str:
        """Of all that was appended before it was held; of the first log that is not whole."""
        log = logs.get(self._open_logs[-1]) if self._open_logs else None
        behind = [
            each.replica.ordinal
            for each in counted or ()
            if log is not None
            and each.counted(self._open_logs[-1], is_synced=True) < log.ends.written
        ]
        who = f"broker {min(behind)}" if behind else "its leader"
        return f"{who} has not stored all of it"

    def _can_seal(
        self, step: OpenStep, counted: Sequence[Progress] | None, logs: Mapping[LogKey, LedLog]
    ) -> bool:
        """All logs are whole wherever they count. O(1) while the first one is not."""
        if counted is None:
            return False
        left = self._open_logs
        while left and (left[-1] not in step.logs or _is_whole(left[-1], counted, logs)):
            left.pop()  # what was purged is not waited for
        if left:
            return False
        # Since then a replica may have come to count, or a log have gone.
        self._open_logs = [each for each in step.logs if not _is_whole(each, counted, logs)]
        return not self._open_logs


def _what_it_lacks(
    view: RangeView,
    step: OpenStep,
    logs: Mapping[LogKey, LedLog],
    heard: Collection[int],
) -> str:
    """Empty: soon all can be sealed. Else appends would be held for nothing."""
    isr = {each.ordinal for each in view.range.isr if not each.is_ghost}
    missing = step.staying - isr
    if missing:
        return f"broker {min(missing)} is not in sync"
    if not step.are_heard(heard):
        silent = {each.ordinal for heirs in step.heirs for each in heirs} - {*heard}
        return f"broker {min(silent)} is not heard" if silent else "too few brokers are there"
    if not step.logs <= logs.keys():
        return "not all of its partitions are open on its leader"
    is_near = all(each.is_nearly_committed for each in logs.values())
    return "" if is_near else "its replicas lack much of what its leader has"


def _is_whole(key: LogKey, counted: Sequence[Progress], logs: Mapping[LogKey, LedLog]) -> bool:
    """Whoever counts has written and flushed all that was ever appended, and it is committed."""
    log = logs.get(key)
    if log is None or not log.is_committed:
        return False
    end = log.ends.written
    return log.ends.flushed >= end and all(
        each.counted(key, is_synced=True) >= end for each in counted
    )
