"""What `tailrace status`, `ring` and `dev` print and keep, without a broker."""

import json
import socket
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tailrace.cli.checking.check import FAILED
from tailrace.cli.checking.checks import ring_checks
from tailrace.cli.lib.ring_rows import filled_in, is_own
from tailrace.cli.verbs import dev
from tailrace.cli.verbs.ring import ring_text, waiting_lines
from tailrace.cli.verbs.status import copies_note, headline
from tailrace.errors import ConnectionFailedError, TailraceError
from tailrace.local import ring as local_ring
from tailrace.local.broker import HOST, PEER_LISTENERS, BrokerEndedError, PortTakenError
from tailrace.local.ring import (
    BROKERS_MAX,
    PORT_STRIDE,
    RING_FILE,
    SECRET_FILE,
    LocalRing,
    begun_with,
)
from tailrace.protocol.requests import Answer
from tailrace.protocol.ring_requests import (
    accept_loss_request,
    found_request,
    parse_range,
    parse_ring,
    parse_ring_history,
    recover_metadata_request,
    ring_history_request,
    ring_request,
)
from tailrace.protocol.ring_values import RingDetails
from tailrace.values import BrokerStatus, Ring, RingStatus, to_document
from tests.support.broker.fixtures import free_port_base, free_ring_port

REGISTRATION = {
    "ordinal": 0,
    "registration": 3,
    "incarnation": "7f3a1111-0000",
    "boot": 4,
    "loss": "process",
    "fenced": False,
    "alive": True,
    "height": 11,
}
RANGE = {
    "id": 0,
    "start": "-9223372036854775808",
    "end": "-3074457345618259968",
    "epoch": 5,
    "leader": 0,
    "replicas": [0],
    "isr": [{"ordinal": 0, "registration": 3, "ghost": False, "cause": None}],
    "followers": [
        {"ordinal": 1, "lagRecords": 1204, "lagMs": 35},
        {"ordinal": 2, "lagRecords": None, "lagMs": None},
        {"ordinal": 3, "lagRecords": 0, "lagMs": 0},
    ],
    "state": "open",
}
GHOST = {"ordinal": 1, "registration": 2, "ghost": True, "cause": "disk"}
WAITING = {**RANGE, "id": 1, "start": "7", "leader": None, "isr": [GHOST], "state": "waiting"}
RING: dict[str, Any] = {
    "name": "demo",
    "state": "member",
    "clusterId": "0b",
    "brokers": 2,
    "factor": 1,
    "copies": 1,
    "metadata": {
        "term": 7,
        "leader": 0,
        "voters": [0],
        "nextVoters": [],
        "height": 12,
        "applied": 11,
        "logBytes": 4096,
    },
    "registrations": [REGISTRATION, {**REGISTRATION, "ordinal": 1, "alive": False, "height": None}],
    "ranges": [RANGE, {**WAITING, "followers": None}],
    "step": None,
}
STEP = {
    "id": 1,
    "kind": "split",
    "brokersBefore": 2,
    "brokersAfter": 3,
    "parents": [0, 1],
    "sealed": [1],
}


def ring_of(**changed: Any) -> RingDetails:
    document = {**RING, **changed}
    return parse_ring(Answer(200, {}, json.dumps(document).encode()))


# --- requests and values --------------------------------------------------------------------------


def test_a_ring_is_read_and_written_as_it_was() -> None:
    assert to_document(ring_of()) == RING
    assert to_document(ring_of(step=STEP))["step"] == STEP
    assert parse_range(Answer(200, {}, json.dumps(RANGE).encode())) == ring_of().ranges[0]


def test_what_is_done_by_hand_names_what_it_needs() -> None:
    assert ring_request().target == "/v1/ring"
    assert ring_request(consistent=True).target == "/v1/ring?consistent=true"
    assert json.loads(found_request(3).body) == {"brokers": 3}
    accepted = accept_loss_request(7, 1)
    assert (accepted.method, accepted.target) == ("POST", "/v1/ring/ranges/7/accept-loss")
    assert json.loads(accepted.body) == {"broker": 1}
    assert json.loads(recover_metadata_request(accept_loss=True).body) == {"acceptLoss": True}


def test_the_history_of_a_ring_is_read_as_it_was_said() -> None:
    change = {
        "number": 7,
        "at": "2026-11-26T05:12:03.204911Z",
        "kind": "leaderless",
        "broker": None,
        "range": 1,
        "epoch": 4,
        "text": "range 1: no broker leads since epoch 4 ended",
    }
    answer = Answer(200, {}, json.dumps({"changes": [change]}).encode())

    assert ring_history_request().target == "/v1/ring/history"
    assert [to_document(each) for each in parse_ring_history(answer)] == [change]


# --- ring status ----------------------------------------------------------------------------------


def test_a_ring_is_shown_with_its_brokers_and_ranges() -> None:
    assert ring_text(ring_of()).splitlines() == [
        "RING demo   brokers 1/2   ranges 2   copies 1",
        "metadata leader 0 (term 7)   voters 0   height 11 of 12",
        "BROKER  REGISTRATION  INCARNATION  BOOT  LOSS     STATE  HEIGHT",
        "0       3             7f3a         4     process  alive  11",
        "1       3             7f3a         4     process  down   -",
        "RANGE  START                 END                   EPOCH  LEADER  ISR     REPLICAS  "
        "LAG                  STATE",
        "0      -9223372036854775808  -3074457345618259968  5      0       0       0         "
        "1:1204/35ms,2:?,3:0  open",
        "1       7                    -3074457345618259968  5      -       1?disk  0         "
        "-                    waiting",
        "range 1 waits for its broker with all its data; without it: tailrace ring accept-loss 1 "
        "--broker N",
    ]


def test_what_changes_is_shown() -> None:
    metadata = {**RING["metadata"], "leader": None, "nextVoters": [0, 1, 2]}
    fenced = {**REGISTRATION, "fenced": True}
    reported = ring_text(
        ring_of(
            metadata=metadata,
            registrations=[fenced],
            ranges=[{**RANGE, "isr": [], "state": "sealed"}],
            step=STEP,
            state="waiting to be registered",
        )
    )

    assert "ranges 0   copies 1   this broker is waiting to be registered\n" in reported
    assert "metadata leader none (term 7)   voters 0   next voters 0,1,2" in reported
    assert "  fenced  11\n" in reported
    assert "step 1: split from 2 to 3 brokers, 1 of 2 ranges sealed" in reported


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("waiting to be founded", ["Found a ring: tailrace ring found --brokers N"]),
        ("waiting to be admitted", []),
    ],
)
def test_a_broker_in_no_ring_says_what_to_do(state: str, remedy: list[str]) -> None:
    metadata = {**RING["metadata"], "voters": [], "height": None, "applied": None}
    reported = ring_text(
        ring_of(
            state=state,
            clusterId=None,
            brokers=None,
            factor=None,
            metadata=metadata,
            registrations=[],
            ranges=[],
        )
    )

    assert reported.splitlines() == [
        f"RING demo   this broker is {state}",
        "metadata leader 0 (term 7)   voters none",
        *remedy,
    ]


# --- status ---------------------------------------------------------------------------------------


def row(ordinal: int, *, up_seconds: float | None = None, alive: bool = True) -> BrokerStatus:
    return BrokerStatus(
        ordinal=ordinal,
        token="0",
        leads=4,
        replicates=4,
        damaged=None,
        quarantined=None,
        lag_max=None,
        data_bytes=None,
        disk_used_bytes=None,
        disk_bytes=None,
        direct_io=None,
        durable_write_ms=None,
        incarnation=None,
        started_at=None,
        up_seconds=up_seconds,
        alive=alive,
    )


STATUS = RingStatus(
    length=3,
    names=("127.0.0.1",) * 3,
    producer_port=9251,
    producer_binary_port=0,
    consumer_port=9252,
    ring=Ring("demo", "0b", "0.1.0", 3, 1, None, 7),
    now_us=0,
    brokers=(row(0, up_seconds=5), row(1), row(2, alive=False)),
    ports=(9250, 9260, 9270),
)


class RoutedClient:
    """Broker 1 answers for itself; broker 2 does not."""

    url = "http://127.0.0.1:9250"

    def __init__(self, url: str = url) -> None:
        self._url = url

    def __enter__(self) -> "RoutedClient":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def twin(self, url: str, *, timeout_s: float) -> "RoutedClient":
        return RoutedClient(url)

    def brokers(self) -> Any:
        if self._url != "http://127.0.0.1:9260":
            raise ConnectionFailedError(self._url, "refused")
        return SimpleNamespace(brokers=(row(0), row(1, up_seconds=9)))


def test_each_broker_that_can_be_reached_describes_itself() -> None:
    client: Any = RoutedClient()
    reported = filled_in(client, STATUS)
    alone = replace(STATUS, brokers=STATUS.brokers[:1])

    assert [broker.up_seconds for broker in reported.brokers] == [5, 9, None]
    assert [is_own(broker) for broker in reported.brokers] == [True, True, False]
    assert filled_in(client, alone) is alone
    assert filled_in(client, replace(STATUS, ports=())).brokers == STATUS.brokers


def test_a_ring_without_a_metadata_leader_is_shown() -> None:
    assert headline(STATUS) == (
        "RING demo   brokers 2/3   ranges 3   copies 1   under-replicated 1   "
        "metadata leader none (term 7)   version 0.1.0"
    )


def test_of_one_copy_in_a_ring_of_several_it_is_said_what_that_means() -> None:
    two_copies = replace(STATUS, ring=replace(STATUS.ring, copies=2))

    assert copies_note(STATUS) == [
        "copies 1: each event is on one broker, and cannot be read while that one is away"
    ]
    assert copies_note(two_copies) == []
    assert copies_note(replace(STATUS, length=1)) == []


def test_the_doctor_names_brokers_that_do_not_answer_and_nothing_else_of_them() -> None:
    own = row(0, up_seconds=5)
    checks = {
        ring_check.name: ring_check
        for ring_check in ring_checks(
            "", replace(STATUS, brokers=(own, row(1))), skew_us=0, damaged={}
        )
    }

    assert checks["ring"].state == FAILED
    assert checks["ring"].detail == "2 of 3 brokers do not answer"
    assert not any(name.startswith("broker 1") for name in checks)


# --- a local ring's files -------------------------------------------------------------------------


def with_data(top: Path, ring_file: str | None = None) -> Path:
    """A directory in which broker 0 has begun."""
    (top / "0" / "data").mkdir(parents=True)
    if ring_file is not None:
        (top / RING_FILE).write_text(ring_file)
    return top


def test_a_directory_says_how_many_brokers_it_is_of(tmp_path: Path) -> None:
    assert begun_with(tmp_path / "nosuch") is None
    assert begun_with(tmp_path) is None
    assert begun_with(with_data(tmp_path)) == 1
    (tmp_path / RING_FILE).write_text('{"brokers": 3}')
    assert begun_with(tmp_path) == 3


def begin(top: Path, *names: str) -> None:
    """Brokers by their ordinals, with data; other names are of files."""
    for name in names:
        if name.isdecimal():
            (top / name / "data").mkdir(parents=True)
        else:
            (top / name).touch()


@pytest.mark.parametrize(
    "names", [("2",), ("0", "1", "2"), ("0", SECRET_FILE), ("0", "0.log")], ids=" ".join
)
def test_a_ring_whose_file_is_away_is_not_taken_for_a_broker_alone(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    begin(tmp_path, *names)
    before = sorted(tmp_path.iterdir())

    for broker_count in (1, 3):
        with pytest.raises(TailraceError, match=f'{RING_FILE} does not say .*{{"brokers": N}}'):
            LocalRing(tmp_path, broker_count=broker_count, port=9250)._prepare()
    assert sorted(tmp_path.iterdir()) == before


def test_one_broker_of_several_is_not_a_broker_alone(tmp_path: Path) -> None:
    (with_data(tmp_path) / "0" / RING_FILE).write_text('{"brokers": 3}')

    with pytest.raises(TailraceError, match=f"{RING_FILE} does not say how many brokers"):
        begun_with(tmp_path)


def test_a_number_that_leaves_a_broker_out_is_refused(tmp_path: Path) -> None:
    begin(with_data(tmp_path, '{"brokers": 2}'), "1", "2")

    with pytest.raises(TailraceError, match=f"{RING_FILE} says 2 brokers, but .*/2 holds .*N"):
        begun_with(tmp_path)


@pytest.mark.parametrize("said", [2, 5])
def test_a_number_that_the_brokers_have_not_committed_is_refused(tmp_path: Path, said: int) -> None:
    """Also when a disk was wiped, which says nothing."""
    begin(with_data(tmp_path, json.dumps({"brokers": said})), "2")
    (tmp_path / "0" / RING_FILE).write_text("damaged")
    (tmp_path / "2" / RING_FILE).write_text('{"brokers": 3}')
    before = sorted(tmp_path.iterdir())

    with pytest.raises(TailraceError, match=f'says {said} .* one of 3: write {{"brokers": 3}} in'):
        LocalRing(tmp_path, broker_count=said, port=9250)._prepare()
    assert sorted(tmp_path.iterdir()) == before


def test_the_brokers_number_is_kept_with_their_data(tmp_path: Path) -> None:
    ring = LocalRing(tmp_path, broker_count=2, port=free_ring_port())
    ring._prepare()
    for committed, error in (
        (None, None),
        (3, "says 2 brokers, but the ring is one of 3"),
        (2, None),
    ):
        answers = AnsweringClient(SimpleNamespace(brokers=committed))
        with patch.object(ring, "client", return_value=answers):
            if error is not None:
                with pytest.raises(TailraceError, match=error):
                    ring._note_committed()
            else:
                ring._note_committed()
        kept = [(tmp_path / name / RING_FILE).exists() for name in ("0", "1")]
        assert kept == [committed == 2] * 2
    assert begun_with(tmp_path) == 2


class AnsweringClient:
    """Of a broker with this ring."""

    def __init__(self, ring: Any) -> None:
        self.ring = lambda: ring

    def __enter__(self) -> "AnsweringClient":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class DyingBroker:
    """Never ready; runs as often as it is asked, but for the last time."""

    def __init__(self, log_path: Path | None, run_count: int) -> None:
        self.url = f"http://{HOST}:{free_port_base()}"
        self.log_path = log_path
        self._run_count = run_count

    def is_running(self) -> bool:
        self._run_count -= 1
        return self._run_count >= 0

    def wait(self) -> None:
        raise BrokerEndedError(1, Path("r"), None)


@pytest.mark.parametrize(
    ("broker_count", "log_path", "waits"),
    [(1, None, "to be ready; its state: "), (3, Path("r/0.log"), "to answer, its log: r/0.log; ")],
)
def test_who_waits_long_is_reported_once_for_what(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broker_count: int,
    log_path: Path | None,
    waits: str,
) -> None:
    monkeypatch.setattr(local_ring, "SLOW_S", 0.0)
    broker: Any = DyingBroker(log_path, run_count=2)
    ring = LocalRing(tmp_path, broker_count=broker_count, port=9250)
    ring.brokers = [broker]
    reported: list[str] = []

    with pytest.raises(BrokerEndedError):
        ring.wait_ready(reported.append)
    [line] = reported
    assert line.startswith(f"still waiting for broker 0 {waits}")
    assert line.endswith(f"tailrace ring status --url {broker.url}")


def test_what_a_start_that_failed_has_left_is_no_ring(tmp_path: Path) -> None:
    """Directories of brokers that have never begun, and how many there were to be."""
    LocalRing(tmp_path, broker_count=3, port=free_ring_port())._prepare()
    assert begun_with(tmp_path) is None

    LocalRing(tmp_path, broker_count=4, port=free_ring_port())._prepare()
    (tmp_path / "2" / "data").mkdir()
    assert begun_with(tmp_path) == 4


def test_a_larger_ring_that_never_was_is_forgotten_when_one_broker_starts(tmp_path: Path) -> None:
    LocalRing(tmp_path, broker_count=3, port=free_ring_port())._prepare()
    LocalRing(tmp_path, broker_count=1, port=free_port_base())._prepare()

    assert begun_with(with_data(tmp_path)) == 1
    LocalRing(tmp_path, broker_count=1, port=free_port_base())._prepare()
    assert begun_with(tmp_path) == 1


def test_where_a_port_is_taken_nothing_is_left(tmp_path: Path) -> None:
    port = free_ring_port()
    with socket.create_server((HOST, port + 2 * PORT_STRIDE + PEER_LISTENERS[0])):
        for broker_count in (3, 4):
            with pytest.raises(PortTakenError, match=f"port {port + 25} "):
                LocalRing(tmp_path / "top", broker_count=broker_count, port=port)._prepare()

    assert not (tmp_path / "top").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"brokers": "many"}', '{"brokers": null}', '{"brokers": 2.9}', "\ufffd"]
    + [f'{{"brokers": {number}}}' for number in ("-3", "0", "13", "true")],
)
def test_a_file_that_does_not_say_it_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(TailraceError, match=f"{RING_FILE} does not say .*at most 12"):
        begun_with(with_data(tmp_path, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (with_data(tmp_path) / RING_FILE).mkdir()

    with pytest.raises(TailraceError, match=rf"{RING_FILE} cannot be read \(Is a directory\)"):
        begun_with(tmp_path)


@pytest.mark.parametrize(("begun", "wanted"), [(3, 1), (3, 4), (1, 3)])
def test_the_data_of_another_ring_is_refused_and_left_alone(
    tmp_path: Path, begun: int, wanted: int
) -> None:
    with_data(tmp_path, None if begun == 1 else json.dumps({"brokers": begun}))
    before = sorted(tmp_path.iterdir())

    with pytest.raises(TailraceError, match=f"--brokers {begun}"):
        LocalRing(tmp_path, broker_count=wanted, port=9250)._prepare()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("broker_count", [1, 3])
def test_a_broker_s_own_directory_is_not_that_of_a_ring(tmp_path: Path, broker_count: int) -> None:
    (tmp_path / "0" / "data").mkdir(parents=True)
    (tmp_path / "0" / "data" / "meta.json").touch()

    with pytest.raises(TailraceError, match="0 is a broker's own directory: choose another with"):
        LocalRing(tmp_path / "0", broker_count=broker_count, port=9250)._prepare()
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["data"]


@pytest.mark.parametrize("text", ["", "two words", "sécret", "\n"])
def test_a_file_that_holds_no_secret_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / SECRET_FILE).write_text(text)

    with pytest.raises(TailraceError, match=f"{SECRET_FILE} is no secret.*remove the file"):
        LocalRing(tmp_path, broker_count=3, port=free_ring_port())._prepare()
    assert not (tmp_path / RING_FILE).exists()


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).mkdir()

    with pytest.raises(TailraceError, match=rf"{SECRET_FILE} cannot be read \(Is a directory\)"):
        LocalRing(tmp_path, broker_count=3, port=free_ring_port())._prepare()


# --- what dev says --------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_count", range(2, BROKERS_MAX + 1))
def test_the_demo_has_a_key_for_every_range_that_is_led(broker_count: int) -> None:
    urls = [str(ordinal) for ordinal in range(broker_count)]
    bounds = [2**64 * index // broker_count - 2**63 for index in range(broker_count + 1)]
    for led in range(broker_count):
        ranges = [
            RANGE
            | {"id": index, "start": str(start), "end": str(end)}
            | ({"leader": led} if index == led else {"leader": None, "state": "waiting"})
            for index, (start, end) in enumerate(pairwise(bounds))
        ]
        details = ring_of(ranges=ranges)

        place = dev.demo_partition(details, urls)

        assert place.url == urls[led]
        assert place.partition // dev.PARTITIONS_PER_RANGE == led
        assert len(waiting_lines(details)) == broker_count - 1


def test_the_demo_has_a_key_where_no_range_is_led() -> None:
    bounds = {"start": str(-(2**63)), "end": str(2**63)}
    details = ring_of(ranges=[RANGE | bounds | {"leader": None, "state": "waiting"}])

    assert dev.demo_partition(details, ["url"]) == ("SFO", "url", dev.DEMO_PARTITION)


def test_local_rings_are_as_large_and_far_apart_as_the_command_says() -> None:
    assert (dev.BROKERS_MAX, dev.PORT_STRIDE) == (BROKERS_MAX, PORT_STRIDE)


def test_a_ring_s_secret_is_made_once_and_is_its_owner_s(tmp_path: Path) -> None:
    port = free_ring_port()
    rings = [LocalRing(tmp_path / "top", broker_count=3, port=port) for _ in range(2)]
    for ring in rings:
        ring._prepare()
    file = tmp_path / "top" / SECRET_FILE

    assert rings[0].secret
    assert rings[0].secret == rings[1].secret == file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [broker.port for broker in rings[0].brokers] == [port, port + 10, port + 20]


def test_a_broker_alone_has_no_secret_and_no_file(tmp_path: Path) -> None:
    ring = LocalRing(tmp_path / "top", broker_count=1, port=free_port_base())
    ring._prepare()

    assert ring.secret is None
    assert not (tmp_path / "top").exists()
