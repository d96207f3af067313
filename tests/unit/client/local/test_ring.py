"""What `tailrace dev` keeps on disk of a ring, and how it starts one, without a broker."""

import fcntl
import json
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tailrace.errors import ProblemError, TailraceError
from tailrace.local import ring as local_ring
from tailrace.local.broker import HOST, PEER_LISTENERS, BrokerEndedError, PortTakenError
from tailrace.local.member import is_alone
from tailrace.local.ring import (
    PORT_STRIDE,
    RING_FILE,
    SECRET_FILE,
    LocalRing,
    begun_with,
    waiting_note,
)
from tests.support.broker.fixtures import free_port_base, free_ring_port


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
    ring = LocalRing(tmp_path, broker_count=2, port=free_ring_port(2))
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
        self.port = free_port_base()
        self.url = f"http://{HOST}:{self.port}"
        self.log_path = log_path
        self._run_count = run_count

    def is_running(self) -> bool:
        self._run_count -= 1
        return self._run_count >= 0

    def wait(self) -> None:
        raise BrokerEndedError(1, Path("r"), None)


@pytest.mark.parametrize(
    ("broker_count", "log_path", "waits"),
    [(1, None, "to be ready; "), (3, Path("r/0.log"), "to answer, its log: r/0.log; ")],
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
    ring.secret = "s" if broker_count > 1 else None
    ring.brokers = [broker]
    reported: list[str] = []

    with pytest.raises(BrokerEndedError):
        ring.wait_ready(reported.append)
    [line] = reported
    assert line.startswith(f"still waiting for broker 0 {waits}it has not opened its ports yet")
    assert "tailrace ring status" not in line


def test_a_broker_that_listens_can_be_asked_for_what_it_waits() -> None:
    broker: Any = DyingBroker(None, run_count=1)
    with socket.create_server((HOST, broker.port)):
        note = waiting_note(broker, 0, "to be ready")

    assert note == (
        "still waiting for broker 0 to be ready; its state: tailrace ring status --url "
        f"{broker.url}"
    )


class FoundedOnceClient(AnsweringClient):
    """Of a broker in these states, one after the other; it cannot be founded with yet."""

    def __init__(self, *states: str) -> None:
        left = iter(states)
        super().__init__(None)
        self.ring = lambda: SimpleNamespace(state=next(left))
        self.asked: list[int] = []

    def found(self, brokers: int) -> None:
        self.asked.append(brokers)
        raise ProblemError(type="broker-unreachable", title="", status=503, retriable=True)


@pytest.mark.parametrize(
    ("is_new", "states", "asked", "waits"),
    [
        (False, ("starting", "starting", "member"), 0, "to read its data"),
        (True, ("waiting to be founded", "waiting to be registered"), 1, "to found the ring"),
        (False, ("waiting to be founded", "waiting to be admitted"), 1, "to be admitted"),
    ],
)
def test_only_an_empty_broker_is_founded_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
    states: tuple[str, ...],
    asked: int,
    waits: str,
) -> None:
    port = free_ring_port(3)
    if not is_new:
        with_data(tmp_path, json.dumps({"brokers": 3}))
    ring = LocalRing(tmp_path, broker_count=3, port=port)
    ring._prepare()
    client, reported = FoundedOnceClient(*states), list[str]()
    ring._report, ring._slow_at_s = reported.append, 0.0
    monkeypatch.setattr(ring, "client", lambda: client)
    monkeypatch.setattr(ring, "_check_living", lambda: None)

    ring._found_if_new()
    assert client.asked == [3] * asked
    [line] = reported
    assert line.startswith(f"still waiting for broker 0 {waits}, its log: ")


def test_what_a_start_that_failed_has_left_is_no_ring(tmp_path: Path) -> None:
    """Directories of brokers that have never begun, and how many there were to be."""
    LocalRing(tmp_path, broker_count=3, port=free_ring_port(3))._prepare()
    assert begun_with(tmp_path) is None

    LocalRing(tmp_path, broker_count=4, port=free_ring_port(4))._prepare()
    (tmp_path / "2" / "data").mkdir()
    assert begun_with(tmp_path) == 4


def test_a_larger_ring_that_never_was_is_forgotten_when_one_broker_starts(tmp_path: Path) -> None:
    LocalRing(tmp_path, broker_count=3, port=free_ring_port(3))._prepare()
    LocalRing(tmp_path, broker_count=1, port=free_port_base())._prepare()

    assert begun_with(with_data(tmp_path)) == 1
    LocalRing(tmp_path, broker_count=1, port=free_port_base())._prepare()
    assert begun_with(tmp_path) == 1


def test_where_a_port_is_taken_nothing_is_left(tmp_path: Path) -> None:
    port = free_ring_port(3)
    with socket.create_server((HOST, port + 2 * PORT_STRIDE + PEER_LISTENERS[0])):
        for broker_count in (3, 4):
            with pytest.raises(PortTakenError, match=f"port {port + 25} "):
                LocalRing(tmp_path / "top", broker_count=broker_count, port=port)._prepare()

    assert not (tmp_path / "top").exists()


@pytest.mark.parametrize(
    ("count", "names", "said"),
    [
        (
            1,
            ("0/lock",),
            "0/data is missing, .*ring.json says .* it from a copy; .*: mkdir -p .*0/",
        ),
        (
            1,
            (),
            "0/data is missing, .*ring.json says .* it from a copy; .*: mkdir -p .*0/data; the",
        ),
        (2, ("0/lock", "1/ring.json"), "0/data, .*1/data are missing, .* them from copies; or "),
    ],
)
def test_a_ring_that_has_lost_all_of_its_data_does_not_begin_again_unasked(
    tmp_path: Path, count: int, names: tuple[str, ...], said: str
) -> None:
    (tmp_path / RING_FILE).write_text(json.dumps({"brokers": count}))
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    ring = LocalRing(tmp_path, broker_count=count, port=free_ring_port(count))

    with pytest.raises(TailraceError, match=said):
        ring._prepare()
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "0" / "data").mkdir(parents=True)
    ring._prepare()


@pytest.mark.parametrize("name", ["2/data", "0/data.lost"])
def test_a_ring_starts_with_one_broker_s_data_or_with_none_that_was_given_up(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / RING_FILE).write_text('{"brokers": 3}')
    (tmp_path / name).mkdir(parents=True)
    ring = LocalRing(tmp_path, broker_count=3, port=free_ring_port(3))

    ring._prepare()
    assert len(ring.brokers) == 3


@pytest.mark.parametrize("running", ["0", "2"])
def test_a_ring_whose_broker_runs_keeps_its_port(tmp_path: Path, running: str) -> None:
    """`tailrace dev start` reads it."""
    text = '{"brokers": 3, "port": 9250}'
    begin(with_data(tmp_path, text), "1", "2")
    with (tmp_path / running / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TailraceError, match=f"broker {running} of .* runs already: .*--data"):
            LocalRing(tmp_path, broker_count=3, port=free_ring_port(3))._prepare()

    assert (tmp_path / RING_FILE).read_text() == text


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
        LocalRing(tmp_path, broker_count=3, port=free_ring_port(3))._prepare()
    assert not (tmp_path / RING_FILE).exists()


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).mkdir()

    with pytest.raises(TailraceError, match=rf"{SECRET_FILE} cannot be read \(Is a directory\)"):
        LocalRing(tmp_path, broker_count=3, port=free_ring_port(3))._prepare()


def test_a_ring_s_secret_is_made_once_and_is_its_owner_s(tmp_path: Path) -> None:
    port = free_ring_port(3)
    rings = [LocalRing(tmp_path / "top", broker_count=3, port=port) for _ in range(2)]
    for ring in rings:
        ring._prepare()
    file = tmp_path / "top" / SECRET_FILE

    assert rings[0].secret
    assert rings[0].secret == rings[1].secret == file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [broker.port for broker in rings[0].brokers] == [port, port + 10, port + 20]


def test_a_broker_alone_has_no_secret_and_says_that_it_is(tmp_path: Path) -> None:
    top, port = tmp_path / "top", free_port_base()
    assert not is_alone(top)
    ring = LocalRing(top, broker_count=1, port=port)
    ring._prepare()

    assert ring.secret is None
    assert json.loads((top / RING_FILE).read_text()) == {"brokers": 1, "port": port, "alone": True}
    assert is_alone(top)
    (top / RING_FILE).write_text("[]")
    assert not is_alone(top)


def test_a_broker_alone_that_was_to_grow_is_one_of_several(tmp_path: Path) -> None:
    """`tailrace dev` ended between the start of the others and their steps."""
    text = '{"brokers": 1, "port": 9250, "joining": 3}'
    ring = LocalRing(with_data(tmp_path, text), broker_count=1, port=free_ring_port(1))
    ring._prepare()

    assert ring.secret is not None
    assert len(ring.brokers) == 3
    assert not is_alone(tmp_path)
