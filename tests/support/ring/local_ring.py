"""A ring of broker processes on loopback, to be killed, paused, restarted and wiped."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tailrace.local.broker import HOST, LocalBroker
from tailrace.local.ring import PORT_STRIDE
from tests.support.broker.fixtures import free_ring_port

SECRET = "a-secret-of-the-tests"  # visible characters, as a token has them
ANSWER_S_MAX = 15.0
# No bounds of the ring's: they end a test that hangs, and a busy machine reaches none of them.
WHOLE_S_MAX = 180.0
TEST_S_MAX = 900.0
POLL_S = 0.02


class LocalRing:
    """Brokers 0 to `count` - 1 below `root`; not started yet."""

    def __init__(
        self,
        root: Path,
        *,
        port: int | None = None,
        count: int = 3,
        peer_host_of: Callable[[int], str] = lambda _: HOST,
        **settings: Any,
    ) -> None:
        """`port`: of broker 0, else a free one; `peer_host_of`: where a broker finds the others."""
        self.root = root
        self._port = free_ring_port(count) if port is None else port
        self._peer_host_of = peer_host_of
        self._settings = settings
        self.brokers = [self._broker(ordinal) for ordinal in range(count)]
        self.paused: set[int] = set()

    def _broker(self, ordinal: int) -> LocalBroker:
        return LocalBroker(
            self.root / str(ordinal),
            port=self._port + PORT_STRIDE * ordinal,
            settings={
                "ordinal": ordinal,
                "peer_host": self._peer_host_of(ordinal),
                "port_stride": PORT_STRIDE,
                "ring_secret": SECRET,
                "log_level": "warning",
                **self._settings,
            },
            log_path=self.root / f"{ordinal}.log",
        )

    def start_next(self) -> int:
        """One broker more, which is registered and serves, without a range; its ordinal."""
        ordinal = len(self.brokers)
        self.brokers.append(self._broker(ordinal))
        self.brokers[ordinal].start()
        self.wait_ready(ordinal)
        return ordinal

    def start_all(self) -> None:
        """All processes; none is ready until the ring has been founded."""
        for broker in self.brokers:
            broker.start()

    def found(
        self, brokers: int | None = None, *, at: int = 0, timeout_s: float = WHOLE_S_MAX
    ) -> None:
        """Of so many brokers, all unless given, as soon as broker `at` answers."""
        body = {"brokers": len(self.brokers) if brokers is None else brokers}
        self.until(lambda: self.is_answered(at, "POST", "/v1/ring/found", body), timeout_s)

    def wait_ready(self, *ordinals: int, timeout_s: float = WHOLE_S_MAX) -> None:
        """Until these brokers serve; all by default."""
        for ordinal in ordinals or range(len(self.brokers)):
            self.until(partial(self.is_answered, ordinal, "GET", "/ready"), timeout_s)

    def wait_live(self, ordinal: int) -> None:
        """Until the process answers, whether it is in a ring or not."""
        self.until(partial(self.is_answered, ordinal, "GET", "/live"), WHOLE_S_MAX)

    def kill(self, ordinal: int) -> None:
        """SIGKILL."""
        self.paused.discard(ordinal)
        self.brokers[ordinal].kill()

    def pause(self, ordinal: int) -> None:
        """SIGSTOP."""
        self.paused.add(ordinal)
        os.kill(self.brokers[ordinal].pid, signal.SIGSTOP)

    def resume(self, ordinal: int) -> None:
        """SIGCONT."""
        self.paused.discard(ordinal)
        os.kill(self.brokers[ordinal].pid, signal.SIGCONT)

    def wipe(self, ordinal: int) -> None:
        """Take the data of a broker that is not running away."""
        assert not self.brokers[ordinal].is_running()
        shutil.rmtree(self.brokers[ordinal].data_dir)

    def call(
        self,
        ordinal: int,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = ANSWER_S_MAX,
    ) -> Any:
        """The JSON answer; HTTPError and other OSError, HTTPException."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
        content = None if body is None else json.dumps(body).encode()
        request = Request(self.brokers[ordinal].url + path, content, headers, method=method)
        with urlopen(request, timeout=timeout_s) as answer:
            found = answer.read()
        return json.loads(found) if found else None

    def is_answered(self, ordinal: int, method: str, path: str, body: Any = None) -> bool:
        """Whether the call succeeds now."""
        try:
            self.call(ordinal, method, path, body)
        except HTTPError as error:
            error.close()
            return False
        except (OSError, HTTPException):  # it may have ended within its answer
            return False
        return True

    def ring(self, ordinal: int) -> dict[str, Any]:
        """What a broker knows of the ring."""
        found: dict[str, Any] = self.call(ordinal, "GET", "/v1/ring")
        return found

    def ranges(self) -> list[dict[str, Any]]:
        """The ranges as a majority knows them now; nothing when nobody can say."""
        for ordinal, broker in enumerate(self.brokers):
            if not broker.is_running() or ordinal in self.paused:
                continue
            with suppress(OSError, HTTPException):
                found: list[dict[str, Any]] = self.call(
                    ordinal, "GET", "/v1/ring?consistent=true", timeout_s=5
                )["ranges"]
                return found
        return []

    def is_whole(self) -> bool:
        """Whether each range has a leader and all its replicas in sync, none of them a ghost."""
        ranges = self.ranges()
        return bool(ranges) and all(
            each["state"] == "open"
            and each["leader"] is not None
            and {member["ordinal"] for member in each["isr"]} == set(each["replicas"])
            and not any(member["ghost"] for member in each["isr"])
            for each in ranges
        )

    def wait_whole(self) -> None:
        """Until all brokers serve and each range has a full ISR."""
        self.wait_ready()
        self.until(self.is_whole, WHOLE_S_MAX)

    def metadata_leader(self) -> int:
        """As soon as somebody who can be asked knows one that is alive."""
        leaders: list[int] = []

        def is_known() -> bool:
            for ordinal, broker in enumerate(self.brokers):
                if not broker.is_running() or ordinal in self.paused:
                    continue
                if not self.is_answered(ordinal, "GET", "/live"):
                    continue
                leader = self.ring(ordinal)["metadata"]["leader"]
                if leader is not None and self.brokers[leader].is_running():
                    leaders.append(leader)
                    return True
            return False

        self.until(is_known, WHOLE_S_MAX)
        return leaders[0]

    def until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Ask again and again; AssertionError with the brokers' last lines when time is over."""
        deadline_s = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline_s, self.last_lines()
            time.sleep(POLL_S)

    def last_lines(self) -> str:
        """Of the logs, to diagnose a failure."""
        logs = sorted(self.root.glob("*.log"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def end_all(self) -> None:
        """SIGKILL, paused or not."""
        for broker in self.brokers:
            broker.kill()


@contextmanager
def founded_ring(
    root: Path, *, count: int = 3, founders: int | None = None, **settings: Any
) -> Iterator[LocalRing]:
    """A ring whose brokers serve; none of its processes outlives the block.

    `founders`: the first brokers, which it begins with; all unless given. The others wait to join.
    """
    ring = LocalRing(root, count=count, **settings)
    try:
        ring.start_all()
        ring.found(founders)
        ring.wait_ready()
        yield ring
    finally:
        ring.end_all()


def waits_without_its_data(ring: LocalRing, range_id: int) -> bool:
    """Whether a range's only broker is known to be there again with another disk.

    Before, the range waits as well: for a broker that is only away.
    """
    found = ring.ring(0)["ranges"][range_id]
    return found["state"] == "waiting" and all(each["ghost"] for each in found["isr"])
