"""A consumer of a group as a process that can be killed at any moment, and what it noted.

It notes each delivery before it confirms it, and each request's span on the machine's monotonic
clock: what `tests.support.groups.group_history` checks. A file of notes is one process's.
"""

import faulthandler
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from select import select
from threading import Event
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from tailrace.errors import (
    ConnectionFailedError,
    ConsumerNotRegisteredError,
    ProblemError,
    StaleAssignmentError,
    StaleDeliveryError,
)
from tailrace.protocol.group_requests import Form, PollParameters, poll_request
from tailrace.protocol.group_values import Polled
from tailrace.sync import Client
from tailrace_broker.codec.batch import decompress_payload, verify_batch
from tailrace_broker.codec.records import unpack_columns
from tests.support.groups.group_history import (
    Confirmation,
    Delivery,
    Goodbye,
    Record,
    RecordPosition,
    Span,
)

REPOSITORY = Path(__file__).parents[3]
# A request that was not answered may be heard whenever.
NEVER_NS = 2**63 - 1
PAUSE_S = 0.05
WAIT_MS_MAX = 500
RECORDS_MAX = 2_000
BYTES_MAX = 64 * 1024
COMMIT_SHARE = 0.3
LOST_SHARE = 0.1
HANDLE_S_MAX = 0.2
# A broker on a busy machine hears of a request after its sender has gone.
LATE_NS_MAX = 300_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer process is to do; events' JSON has an `id`. `topics`: their ids by name.

    `urls`: of brokers; each request goes to any of them.
    """

    urls: list[str]
    group: str
    consumer_id: str
    topics: dict[str, str]
    form: Form
    session_ms: int
    seed: int
    notes: str


def start_consumer(wanted: Wanted, log_path: Path) -> subprocess.Popen[bytes]:
    """SIGTERM lets it say goodbye; what it has to say itself goes to the log.

    SIGABRT ends it with its stack in the log.
    """
    with log_path.open("ab") as log:
        command = [
            sys.executable,
            "-m",
            "tests.support.groups.group_consumer",
            json.dumps(asdict(wanted)),
        ]
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)


class Notes:
    """What a group's consumers noted, of all their processes."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.deliveries: list[Delivery] = []
        self.confirmations: list[Confirmation] = []
        self.goodbyes: list[Goodbye] = []
        self._places: dict[RecordPosition, RecordPosition] = {}
        for path in paths:
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # else it was killed while it wrote, and has not confirmed
                    self._add(json.loads(line))

    def _add(self, note: dict[str, Any]) -> None:
        span = Span(*note["span"])
        match note["what"]:
            case "delivery":
                records = tuple(
                    Record(event_id, self._position(RecordPosition(topic, partition, offset)))
                    for topic, partition, offset, event_id in note["records"]
                )
                delivery = Delivery(note["consumer"], note["number"], span, records)
                self.deliveries.append(delivery)
            case "confirmation":
                confirmation = Confirmation(note["number"], span, note["isStored"])
                self.confirmations.append(confirmation)
            case "goodbye":
                self.goodbyes.append(Goodbye(note["consumer"], span))

    def _position(self, position: RecordPosition) -> RecordPosition:
        """One object for each: a record comes again and again."""
        return self._places.setdefault(position, position)


class _Consumer:
    """Polls until it is asked to stop; commits now and then, else the next poll confirms."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        # Not an event: a signal handler that sets one may find its lock taken by the code below it.
        self._is_to_stop = False
        signal.signal(signal.SIGTERM, self._on_signal)  # before there are notes: then it may come
        self._random = Random(wanted.seed)
        self._clients = [Client(url) for url in wanted.urls]
        # Not buffered: what was written survives this process.
        self._notes = Path(wanted.notes).open("wb", buffering=0)  # noqa: SIM115
        self._topic_names = {UUID(topic_id).bytes: name for name, topic_id in wanted.topics.items()}
        self._epoch: int | None = None  # None: not registered, as far as it knows
        self._delivery = 0
        self._registering_ns = 0
        self._has_all = False  # that was delivered: no answer may be lost, of no process before
        self._has_left = False

    @property
    def _client(self) -> Client:
        return self._random.choice(self._clients)

    def run(self) -> None:
        """Through every death of a broker."""
        while not self._is_to_stop:
            with _retried():
                self._step()
        while not self._has_left:
            with _retried():
                self._say_goodbye()

    def _on_signal(self, *_: object) -> None:
        self._is_to_stop = True

    def _step(self) -> None:
        if self._epoch is None:
            self._register()
        elif self._delivery and self._random.random() < COMMIT_SHARE:
            self._commit()
        if self._epoch is not None and self._random.random() < LOST_SHARE:
            self._lose_an_answer()
        try:
            self._poll()
        except ConsumerNotRegisteredError:
            self._epoch, self._delivery = None, 0
        except StaleAssignmentError:
            self._register_again()

    def _register_again(self) -> None:
        """A registration whose answer was lost came to the broker late, and gave back all."""
        self._note("goodbye", self._registering_ns)
        self._epoch, self._delivery = None, 0

    def _register(self) -> None:
        wanted = self._wanted
        self._registering_ns = monotonic_ns()
        registered = self._client.register(
            wanted.consumer_id,
            wanted.group,
            wanted.topics,
            on_new_group="startFromEarliest",
            session_ms=wanted.session_ms,
        )
        self._epoch, self._delivery = registered.assignment_epoch, 0

    def _parameters(self) -> PollParameters:
        return {
            "delivery": self._delivery,
            "assignment_epoch": self._epoch,
            "form": self._wanted.form,
            "max_records": self._random.randint(1, RECORDS_MAX),
            "max_bytes": self._random.randint(1, BYTES_MAX),
            "wait_ms": self._random.randint(0, WAIT_MS_MAX),
        }

    def _lose_an_answer(self) -> None:
        """A poll whose answer comes, and is not read.

        Heard late, it is answered with less of the next delivery than that brings: the rest of
        what the consumer has then is given back.
        """
        self._has_all = False
        start_ns = monotonic_ns()
        request = poll_request(self._wanted.consumer_id, **self._parameters())
        connection = HTTPConnection(urlsplit(self._random.choice(self._wanted.urls)).netloc)
        with closing(connection), suppress(OSError):
            connection.request(request.method, request.target, headers=dict(request.headers))
            select([connection.sock], [], [], WAIT_MS_MAX / 1000)
        self._note("goodbye", start_ns, end_ns=monotonic_ns() + LATE_NS_MAX)

    def _poll(self) -> None:
        start_ns = monotonic_ns()
        self._has_all = False
        polled = self._client.poll(self._wanted.consumer_id, **self._parameters())
        self._has_all = True
        self._note_confirmed(start_ns, is_stored=False)
        self._epoch = polled.assignment_epoch
        if polled.body:
            self._note(
                "delivery", start_ns, number=polled.delivery, records=[*self._records(polled)]
            )
            self._delivery = polled.delivery
            Event().wait(self._random.uniform(0, HANDLE_S_MAX))  # it does something with it

    def _commit(self) -> None:
        start_ns = monotonic_ns()
        try:
            self._client.commit(
                self._wanted.consumer_id, delivery=self._delivery, assignment_epoch=self._epoch
            )
        except StaleDeliveryError:  # the broker died meanwhile, and forgot it
            self._delivery = 0
        except ConsumerNotRegisteredError:
            self._epoch, self._delivery = None, 0
        except StaleAssignmentError:
            self._register_again()
        else:
            self._note_confirmed(start_ns, is_stored=True)

    def _say_goodbye(self) -> None:
        start_ns = monotonic_ns()
        self._note("goodbye", start_ns, end_ns=NEVER_NS)
        with suppress(ConsumerNotRegisteredError):
            self._client.goodbye(self._wanted.consumer_id, commit=self._has_all)
            if self._has_all:
                # It names no delivery: whether the broker still knew this one it does not say.
                self._note_confirmed(start_ns, is_stored=False)
        self._has_left = True

    def _records(self, polled: Polled) -> Iterator[tuple[str, int, int, str]]:
        """Topic, partition, offset and the event's id, of each record in the answer's order."""
        if self._wanted.form == "ndjson":
            for record in map(json.loads, polled.body.splitlines()):
                yield record["topic"], record["partition"], record["offset"], record["value"]["id"]
        elif self._wanted.form == "json":
            for piece in json.loads(polled.body):
                for offset, value in enumerate(piece["values"], start=int(piece["startOffset"])):
                    yield piece["topic"], piece["partition"], offset, value["id"]
        else:
            yield from self._binary_records(polled)

    def _binary_records(self, polled: Polled) -> Iterator[tuple[str, int, int, str]]:
        view = memoryview(polled.body)
        position = 0
        while position < len(view):
            header = verify_batch(view, position)
            topic = self._topic_names[header.topic_id]
            start = polled.start_offsets.get((topic, header.partition), header.base_offset)
            for record in unpack_columns(header, decompress_payload(header, view[position:])):
                if record.offset >= start:
                    event_id = json.loads(record.value or b"")["id"]
                    yield topic, header.partition, record.offset, event_id
            position += header.batch_bytes

    def _note_confirmed(self, start_ns: int, *, is_stored: bool) -> None:
        if self._delivery:
            self._note("confirmation", start_ns, number=self._delivery, isStored=is_stored)

    def _note(self, what: str, start_ns: int, *, end_ns: int | None = None, **members: Any) -> None:
        note = {
            "what": what,
            "consumer": self._wanted.consumer_id,
            "span": [start_ns, monotonic_ns() if end_ns is None else end_ns],
            **members,
        }
        self._notes.write(json.dumps(note).encode() + b"\n")


@contextmanager
def _retried() -> Iterator[None]:
    """Swallow what a broker that is not there, or not yet, fails with; then pause."""
    try:
        yield
    except (ConnectionFailedError, ProblemError) as error:
        if not error.retriable:
            raise
        Event().wait(PAUSE_S)


def main() -> None:
    """Until SIGTERM."""
    faulthandler.enable()
    _Consumer(Wanted(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
