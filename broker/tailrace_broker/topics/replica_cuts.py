"""Cuts the logs of this broker's replicas as their leaders say. On the event loop only."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from tailrace_broker.model.append_outcome import CutOutcome, CutRefused, LogIsCut
from tailrace_broker.model.replication import LogCut, LogKey
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.segments.writer import LogPlace

# Until a cut that the disk has refused is tried again.
RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class ReplicaCuts:
    """Repeats a cut that has failed, as long as the log that it was meant for is open."""

    def __init__(
        self,
        log_of: Callable[[LogKey], PartitionLog | None],
        on_cut: Callable[[LogKey], None],
        on_damaged: Callable[[LogPlace], None],
    ) -> None:
        """`log_of` returns the log that is open; `on_cut`: the cut is durable.

        `on_damaged`: the log does not hold what it has reported, so it cannot be cut there.
        """
        self._log_of = log_of
        self._on_cut = on_cut
        self._on_damaged = on_damaged
        self._is_stopped = False

    def begin(self, cut: LogCut) -> None:
        """Cut the log that is open now; when there is none, nothing is left to be cut."""
        log = self._log_of(cut.log)
        if log is not None:
            self._cut(cut, log)

    def stop(self) -> None:
        """Begin no more cuts."""
        self._is_stopped = True

    def _cut(self, cut: LogCut, log: PartitionLog) -> None:
        """What was opened since in the place of the log has other records, which may count."""
        if self._log_of(cut.log) is not log or self._is_stopped:
            return
        _log.info(
            "replica.cut",
            topic=log.place.topic,
            partition=log.place.partition,
            end_offset=cut.end,
            log_end=log.log_end,
            is_reset=cut.is_reset,
        )
        # The machine has refused what the range has not recorded as lost.
        ended = partial(self._ended, cut, log)
        log.cut(cut.end, cut.epoch, ended, is_reset=cut.is_reset)

    def _ended(self, cut: LogCut, log: PartitionLog, outcome: CutOutcome) -> None:
        if isinstance(outcome, LogIsCut):
            self._on_cut(cut.log)
            return
        _log.error("replica.uncut", partition=cut.log.partition, detail=str(outcome))
        if isinstance(outcome, CutRefused):  # it would be again
            self._on_damaged(log.place)
        else:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._cut, cut, log)
