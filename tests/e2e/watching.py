"""What is seen of a ring while something happens to it: its pods, its status, its replicas."""

import json
from typing import Any

from tests.e2e.client_pod import PROGRAMS, ClientPod
from tests.e2e.kubernetes import Running
from tests.e2e.resources import is_ready

WATCH_PODS = ["get", "pods", "--watch", "--output-watch-events", "--output", "json"]
WATCH_PHASES = ["get", "trc", "events", "--watch", "--output", "jsonpath={.status.phase}{'\\n'}"]


def away_at_once(running: Running) -> int:
    """The most brokers that were not ready at one time, by what `WATCH_PODS` saw."""
    ready: dict[str, bool] = {}
    away = 0
    for event in events_of("".join(running.lines())):
        pod = event["object"]
        is_leaving = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
        ready[pod["metadata"]["name"]] = is_ready(pod) and not is_leaving
        if len(ready) == 3:
            away = max(away, list(ready.values()).count(False))
    return away


def events_of(printed: str) -> list[Any]:
    """JSON documents, one behind the other; the last may be cut off."""
    decoder, events, start = json.JSONDecoder(), [], 0
    while start < len(printed):
        try:
            event, end = decoder.raw_decode(printed, start)
        except ValueError:
            break
        events.append(event)
        start = end + len(printed[end:]) - len(printed[end:].lstrip())
    return events


def watch_replicas(client: ClientPod, url: str) -> list[str]:
    """The arguments of a `kubectl` that prints, again and again, `copies_at_least`'s lines."""
    program = (PROGRAMS / "replicas.py").read_text()
    return ["exec", "--stdin", client.name, "--", "python", "-c", program, url]


def copies_at_least(running: Running) -> int:
    """The fewest replicas that were in sync in any range at any time."""
    lines = running.lines()
    assert lines, "no broker has answered"
    return min(map(int, lines))
