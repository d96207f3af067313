"""Reports a streaming query's offsets to the broker: its lag then shows among the groups'.

Nothing hangs on it. Where the query goes on is in Spark's checkpoint; what could not be reported is
reported later, and is never a reason for the query to end or to wait.
"""

import logging
import time
from collections.abc import Callable

from tailrace.errors import TailraceError
from tailrace.spark.connection import PatientClient
from tailrace.spark.options import ReadOptions
from tailrace.spark.stream_offsets import Offsets
from tailrace.sync import Client

SOURCE = "spark"
TIMEOUT_S = 5.0  # the query waits this long for a broker that does not answer
RETRY_AFTER_S = 30.0

_log = logging.getLogger(__name__)


class GroupOffsets:
    """The offsets of one group, published when they have changed."""

    def __init__(
        self, group: str, client: PatientClient, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._group = group
        self._client = client
        self._now_s = now_s
        self._published: Offsets | None = None
        self._retry_at_s: float | None = None  # it has failed: not before

    @classmethod
    def of(cls, group: str, options: ReadOptions) -> "GroupOffsets":
        """For a stream. Each broker is asked once, since there is no time to wait."""
        return cls(group, PatientClient(options.urls, retry_count=0, timeout_s=TIMEOUT_S))

    def publish(self, offsets: Offsets) -> None:
        """Report how far the query is; it may be asked many times a second. Never raises."""
        now_s = self._now_s()
        is_too_soon = self._retry_at_s is not None and now_s < self._retry_at_s
        if offsets == self._published or is_too_soon:
            return
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            by_topic.setdefault(topic, {})[partition] = offset

        def request(client: Client) -> None:
            client.publish_offsets(self._group, SOURCE, by_topic)

        try:
            self._client.ask(request)
        except TailraceError as error:
            if self._retry_at_s is None:
                _log.warning(
                    'progress of group "%s" is not published: %s; the query goes on, and this is '
                    "tried again",
                    self._group,
                    error,
                )
            self._retry_at_s = now_s + RETRY_AFTER_S
        else:
            self._published = offsets
            self._retry_at_s = None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
