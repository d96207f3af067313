"""Users who have nothing but curl, and a proxy that spreads their requests over all brokers.

A broker is killed and another one stopped. All that is answered with an error can be tried again,
and nothing that was acknowledged is lost.
"""

import json
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.ring.local_ring import WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.round_robin import round_robin
from tests.support.ring.seeds import seed_of

EVENTS_MIN = 20  # of each user, between two faults
CURL_S_MAX = 20
KEYS = 8
# What curl exits with when the broker ended the connection before an answer, or within it.
LOST = {18, 52, 55, 56}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


def curl(port: int, path: str, *options: str) -> tuple[int, str, str]:
    """Return curl's exit code, the HTTP status and the body."""
    shown = ["-s", "-w", "\n%{http_code}", "-m", str(CURL_S_MAX), *options]
    result = subprocess.run(
        ["curl", *shown, f"127.0.0.1:{port}{path}"], capture_output=True, text=True, check=False
    )
    body, _, status = result.stdout.rpartition("\n")
    return result.returncode, status, body


@dataclass(slots=True)
class User:
    """Sends one event after the other; with a `name` each has a producer id and a sequence."""

    port: int
    number: int
    name: str | None
    acknowledged: list[int] = field(default_factory=list)
    maybe_stored: list[int] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    lost_answers: int = 0
    failure: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        event = 0
        try:
            while not stop.is_set():
                self._send(event)
                event += 1
        except BaseException as failure:
            self.failure = failure
            raise

    def _send(self, event: int) -> None:
        """Until it is stored; without a name only as long as nothing was attempted."""
        options = ["-H", "content-type: application/json", "-d"]
        options.append(json.dumps({"user": self.number, "event": event}))
        if self.name is not None:
            options += ["-H", f"Tailrace-Producer-Id: {self.name}"]
            options += ["-H", f"Tailrace-Sequence: {event}"]
        while True:
            path = f"/v1/topic/t/messages?partitionKey=k{event % KEYS}"
            code, status, body = curl(self.port, path, *options)
            if status == "200":
                self.acknowledged.append(event)
                return
            may_be_stored = True
            if code == 0:
                problem = json.loads(body)
                self.problems.append(problem)
                may_be_stored = problem["writeAttempted"]
            else:
                assert code in LOST, (code, status, body)
                self.lost_answers += 1
            if may_be_stored and self.name is None:
                self.maybe_stored.append(event)
                return


def read_all(ring: LocalRing, port: int) -> dict[int, list[int]]:
    """Return the events of each user as they are in the logs, read with curl through the proxy."""
    found: dict[int, list[int]] = {}
    for partition in range(3):
        path = f"/v1/topic/t/partitions/{partition}/records?offset=0&maxRecords=100000"
        end: list[str] = []

        def is_read(path: str = path, end: list[str] = end) -> bool:
            code, status, body = curl(port, path)
            end[:] = body.splitlines()
            return (code, status) == (0, "200")

        ring.until(is_read, WHOLE_S_MAX)
        for line in end:
            value = json.loads(line)["value"]
            found.setdefault(value["user"], []).append(value["event"])
    return found


def test_users_of_curl_lose_nothing_at_any_broker(tmp_path: Path) -> None:
    seed = seed_of(0)
    print(f"seed {seed}")
    with founded_ring(tmp_path) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        with round_robin([broker.port for broker in ring.brokers]) as port:
            users = [User(port, 0, None), User(port, 1, "curl")]
            stop = threading.Event()
            threads = [threading.Thread(target=each.run, args=(stop,)) for each in users]
            for thread in threads:
                thread.start()
            try:
                wait_for_more(ring, users)
                ring.kill(seed % 3)
                wait_for_more(ring, users)
                ring.brokers[seed % 3].start()
                ring.wait_ready()
                ring.brokers[(seed + 1) % 3].stop()
                wait_for_more(ring, users)
                ring.brokers[(seed + 1) % 3].start()
                ring.wait_ready()
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            found = read_all(ring, port)
    for user in users:
        assert user.failure is None
        print(len(user.acknowledged), user.lost_answers, [each["type"] for each in user.problems])
        assert all(each["retriable"] for each in user.problems)
        events = found[user.number]
        assert set(user.acknowledged) <= set(events)
        assert set(events) <= {*user.acknowledged, *user.maybe_stored}
        assert len(set(events)) == len(events)


def wait_for_more(ring: LocalRing, users: list[User]) -> None:
    """Wait until each user has stored some more events."""
    wanted = [len(user.acknowledged) + EVENTS_MIN for user in users]
    ring.until(
        lambda: all(
            user.failure is not None or len(user.acknowledged) >= count
            for user, count in zip(users, wanted, strict=True)
        ),
        WHOLE_S_MAX,
    )


@pytest.mark.parametrize("ordinal", range(3))
def test_the_curl_lines_of_readme_work_at_any_broker(tmp_path: Path, ordinal: int) -> None:
    with founded_ring(tmp_path) as ring:
        port = ring.brokers[ordinal].port
        json_type = ("-H", "content-type: application/json")
        event = '{"origin":"SFO","destination":"JFK","delayMinutes":4}'
        produced = curl(port, "/v1/topic/demo/messages?partitionKey=SFO", "-d", event, *json_type)
        assert produced[:2] == (0, "200")
        partition = json.loads(produced[2])["partition"]
        last = curl(port, "/v1/topic/demo/records?last=1")
        assert json.loads(last[2])["value"] == json.loads(event)
        path = f"/v1/topic/demo/partitions/{partition}/records?offset=0&waitMs=100"
        assert json.loads(curl(port, path)[2])["key"] == "SFO"

        def is_listed() -> bool:
            (offsets,) = json.loads(curl(port, "/v1/offsets?topic=demo")[2])["topics"]
            return bool(offsets["partitions"][partition]["highWatermark"] == 1)

        ring.until(is_listed, WHOLE_S_MAX)
        wanted = '{"name":"orders","partitionsPerRange":4}'
        assert curl(port, "/v1/topics", "-d", wanted, *json_type)[:2] == (0, "201")
        lines = ("--data-binary", '{"a":1}\n{"a":}\n', "-H", "content-type: application/x-ndjson")
        refused = curl(port, "/v1/topic/orders/messages", *lines)
        assert json.loads(refused[2])["line"] == 2
