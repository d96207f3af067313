"""What runs in pods of `FakeNodes`: brokers that are real processes (`ProcessBrokers`), or that
answer from memory (`MemoryBrokers`) where a test needs many rings and no events.
"""

import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.error import URLError
from urllib.request import urlopen
from uuid import uuid4

from aiohttp import web

from tailrace.local.broker import (
    HOST,
    BrokerEndedError,
    LocalBroker,
    PortTakenError,
    check_ports_are_free,
)
from tests.support.operator.served import served

BROKERS_MAX = 5


class Brokers(Protocol):
    """What runs in pods: `start` it with its environment, `stop` it."""

    def start(self, ordinal: int, environment: Mapping[str, str]) -> None: ...

    def stop(self, ordinal: int) -> None: ...

    def is_ready(self, ordinal: int) -> bool: ...


def free_hundred() -> int:
    """A base port that ends in 00, whose brokers' ports are free; it is below ephemeral ones."""
    bases = range(20_000, 31_900, 100)
    for base in random.SystemRandom().sample(bases, len(bases)):
        try:
            for ordinal in range(BROKERS_MAX):
                check_ports_are_free(base + 10 * ordinal, has_peers=True)
        except PortTakenError:
            continue
        return base
    raise AssertionError(f"no free ports in {bases}")


class ProcessBrokers:
    """Real brokers on loopback, ten ports apart from `port` on; their data stays with them."""

    def __init__(self, root: Path, *, port: int) -> None:
        self._root = root
        self._port = port
        self._brokers: dict[int, LocalBroker] = {}

    @property
    def url_pattern(self) -> str:
        """Ports of brokers differ in one digit."""
        assert self._port % 100 == 0, self._port
        return f"http://{HOST}:{self._port // 100}{{ordinal}}0"

    def start(self, ordinal: int, environment: Mapping[str, str]) -> None:
        prefix = "TAILRACE_"
        given = {
            name.removeprefix(prefix).lower(): value
            for name, value in environment.items()
            if name.startswith(prefix)
        }
        # A pod has an address of its own, here all brokers share one.
        here: dict[str, str | float] = {
            "advertised_host": HOST,
            "peer_host": HOST,
            "port_stride": 10,
            "log_level": "warning",
            "journal_bytes": 8 * 1024 * 1024,
        }
        broker = LocalBroker(
            self._root / str(ordinal),
            port=self._port + 10 * ordinal,
            settings={**given, **here},
            log_path=self._root / f"{ordinal}.log",
        )
        self._brokers[ordinal] = broker
        broker.start()

    def stop(self, ordinal: int) -> None:
        with suppress(BrokerEndedError):  # the process of one that has left has ended
            self._brokers.pop(ordinal).stop()

    def is_ready(self, ordinal: int) -> bool:
        broker = self._brokers.get(ordinal)
        if broker is None or not broker.is_running():
            return False
        try:
            with urlopen(f"{broker.url}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, TimeoutError, ConnectionError):
            return False

    def end_all(self) -> None:
        """SIGKILL."""
        for broker in self._brokers.values():
            broker.kill()


@dataclass
class MemoryBrokers:
    """Brokers that know a ring and its topics, and nothing else, each at an address of its own."""

    on_write: Callable[[], Any] | None = None  # awaited after a change, before its answer
    on_change: Callable[[], None] = lambda: None
    cluster_id: str | None = None
    founded: list[str] = field(default_factory=list)
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[int, str] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)
    spare: set[int] = field(default_factory=set)  # registered, and of the ring not yet, or no more
    boots: dict[int, int] = field(default_factory=dict)
    ranges: list[dict[str, Any]] = field(default_factory=list)  # others than those with copies
    copies: int = 1
    behind: set[int] = field(default_factory=set)  # brokers that are in no ISR
    new_disks: set[int] = field(default_factory=set)
    is_catching_up: bool = False  # then who comes back stays behind
    port: int = 0

    @property
    def url_pattern(self) -> str:
        """All of 127.0.0.0/8 is this host."""
        return f"http://127.0.1.{{ordinal}}:{self.port}"

    def start(self, ordinal: int, environment: Mapping[str, str]) -> None:
        self.secrets[ordinal] = environment["TAILRACE_RING_SECRET"]
        self.boots[ordinal] = self.boots.get(ordinal, 0) + 1
        if self.cluster_id is not None and ordinal not in self.members:
            self.spare.add(ordinal)
        if not self.is_catching_up:
            self.behind.discard(ordinal)

    def stop(self, ordinal: int) -> None:
        del self.secrets[ordinal]
        self.behind.add(ordinal)

    def is_ready(self, ordinal: int) -> bool:
        return self.cluster_id is not None and ordinal in self.secrets

    @asynccontextmanager
    async def served(self) -> AsyncIterator["MemoryBrokers"]:
        """On a free port, as long as the block lasts."""
        async with served("0.0.0.0", self._handle) as self.port:
            yield self

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        ordinal = int(request.host.partition(":")[0].rpartition(".")[2])
        if ordinal not in self.secrets:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.path == "/ready" and not self.is_ready(ordinal):
            return web.json_response({}, status=503)
        content = await request.text()
        body = json.loads(content) if content else {}
        answer, status = self._answer(request, ordinal, body)
        if request.method != "GET" and status < 400:
            self.on_change()
            if self.on_write is not None:
                await self.on_write()
        return web.json_response(answer, status=status)

    def _answer(self, request: web.Request, ordinal: int, body: Any) -> tuple[Any, int]:
        parts = request.path.strip("/").split("/")
        match request.method, parts:
            case "GET", ["ready"]:
                return {"ready": True}, 200
            case "GET", ["v1", "ring"]:
                return self._ring(), 200
            case "POST", ["v1", "ring", "found"]:
                reported = request.headers.get("Authorization")
                if reported != f"Bearer {self.secrets[ordinal]}":
                    return {"type": "/v1/problems/secret-required", "title": "no secret"}, 401
                if self.cluster_id is None:
                    self.members = set(range(body["brokers"]))
                    assert self.members <= self.secrets.keys(), "founded without a broker"
                    self.cluster_id = str(uuid4())
                    self.founded.append(self.cluster_id)
                return self._ring(), 200
            case "GET", ["v1", "ring", "plan"]:
                return self._plan(int(request.query["brokers"])), 200
            case "POST", ["v1", "ring", "steps"]:
                return self._step(body["kind"], body["brokersBefore"]), 200
            case "POST", ["v1", "ring", "brokers", leaving, "retire"]:
                self.spare.remove(int(leaving))
                return self._ring(), 200
            case "GET", ["v1", "brokers"]:
                return self._brokers(), 200
            case "POST", ["v1", "topics"]:
                self.topics.setdefault(body["name"], _topic(body))
                return self.topics[body["name"]], 201
            case method, ["v1", "topics", name] if name in self.topics:
                return self._topic(method, name, body), 200
        return {"type": "/v1/problems/topic-not-found", "title": "no such topic"}, 404

    def _plan(self, brokers_after: int) -> dict[str, Any]:
        return {
            "brokers": len(self.members),
            "brokersAfter": brokers_after,
            "missing": [],
            "topics": len(self.topics),
            "steps": [],
            "sealedPartitions": 0,
            "newPartitions": 0,
            "copyBytes": 0,
            "copiesUnknown": 0,
        }

    def _step(self, kind: str, brokers_before: int) -> dict[str, Any]:
        """With no range that is split or joined."""
        assert len(self.members) == brokers_before
        comes, goes = (self.members, self.spare) if kind == "grow" else (self.spare, self.members)
        ordinal = brokers_before - (kind == "shrink")
        goes.remove(ordinal)
        comes.add(ordinal)
        return {
            "step": 1,
            "kind": "split" if kind == "grow" else "join",
            "brokers": len(self.members),
            "durationMs": 7,
            "pauseMs": 5,
            "sealedRanges": [],
            "newRanges": [],
            "sealedPartitions": 0,
            "newPartitions": 0,
        }

    def _topic(self, method: str, name: str, body: Any) -> dict[str, Any]:
        topic = self.topics[name]
        if method == "DELETE":
            return self.topics.pop(name)
        if method == "PATCH":
            if (
                body.get("partitionsPerRange", topic["partitionsPerRange"])
                != (topic["partitionsPerRange"])
            ):
                topic["rangesToSlice"] = len(self.members)
            topic |= body
            return topic
        return {**topic, "partitionDetails": []}

    def _ring(self) -> dict[str, Any]:
        is_in = self.cluster_id is not None
        return {
            "name": "events",
            "state": "member" if is_in else "waiting to be founded",
            "clusterId": self.cluster_id,
            "brokers": len(self.members) if is_in else None,
            "factor": len(self.members) if is_in else None,
            "copies": self.copies,
            "metadata": {
                "term": 1,
                "leader": 0 if is_in else None,
                "voters": sorted(self.members),
                "nextVoters": [],
                "height": 1 if is_in else None,
                "applied": 1 if is_in else None,
            },
            "registrations": [
                {
                    "ordinal": ordinal,
                    "registration": self.boots[ordinal],
                    "incarnation": str(ordinal),
                    "boot": self.boots[ordinal],
                    "loss": "disk" if ordinal in self.new_disks else "clean",
                    "fenced": ordinal not in self.secrets,
                    "alive": ordinal in self.secrets,
                    "height": 1,
                }
                for ordinal in sorted(self.members | self.spare)
            ],
            "ranges": [*self.ranges, *self._copied()],
            "step": None,
        }

    def _copied(self) -> list[dict[str, Any]]:
        """One range, with a replica on each broker."""
        if self.copies == 1 or not self.members:
            return []
        isr = sorted(self.members - self.behind)
        members = [
            {"ordinal": each, "registration": self.boots[each], "ghost": False} for each in isr
        ]
        return [
            {
                "id": 0,
                "start": "0",
                "end": "9",
                "epoch": 1,
                "leader": isr[0] if isr else None,
                "replicas": sorted(self.members),
                "isr": members,
                "state": "open" if isr else "waiting",
            }
        ]

    def _brokers(self) -> dict[str, Any]:
        return {
            "length": len(self.members),
            "names": [],
            "producerPort": 0,
            "producerBinaryPort": 0,
            "consumerPort": 0,
            "now": 0,
            "brokers": [],
            "ring": {
                "name": "events",
                "clusterId": self.cluster_id,
                "version": "0.1.0",
                "ranges": len(self.members),
                "underReplicated": 0,
                "metadataLeader": 0,
                "metadataTerm": 1,
            },
        }


def lost_range(number: int, broker: int) -> dict[str, Any]:
    """A range whose only broker is there again, on an empty disk."""
    return {
        "id": number,
        "start": "0",
        "end": "9",
        "epoch": 2,
        "leader": None,
        "replicas": [broker],
        "isr": [{"ordinal": broker, "registration": 1, "ghost": True}],
        "state": "waiting",
    }


def _topic(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": str(uuid4()),
        "partitionsPerRange": 4,
        "jsonCheck": True,
        "durability": "fsync",
        "partitions": 12,
        "copies": 1,
        "rangesToSlice": 0,
        "compression": "lz4",
        "retentionMs": None,
        "retentionBytes": None,
        **body,
    }
