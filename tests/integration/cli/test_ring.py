"""`tailrace dev --brokers 3`, and the verbs that show and repair a ring, on real processes."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailrace.cli.main import VERBS
from tailrace.local.broker import PortTakenError, check_ports_are_free
from tailrace.sync import Client
from tests.support.broker.fixtures import free_port_base, free_ring_port
from tests.support.cli.commands import (
    TAILRACE,
    TIMEOUT_S,
    assert_fails,
    environment,
    ndjson,
    reported,
    run,
)
from tests.support.cli.dev import Dev, end_by_hand, running
from tests.support.ring.local_ring import SECRET, LocalRing, founded_ring, waits_without_its_data

pytestmark = pytest.mark.integration

BROKERS = 3
EVENTS = [{"customer": f"c{number % 20}", "n": number} for number in range(400)]
ADMITTED_S_MAX = 30.0


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A ring that no test ends."""
    folder = tmp_path_factory.mktemp("dev")
    with running(folder, "--brokers", str(BROKERS), port=free_ring_port(BROKERS)) as started:
        yield started


def command(
    words: Sequence[str], url: str, *, secret: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    surroundings = environment(url) | ({} if secret is None else {"TAILRACE_TOKEN": secret})
    return subprocess.run(
        [TAILRACE, *words], env=surroundings, capture_output=True, timeout=TIMEOUT_S, check=False
    )


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


# --- dev ------------------------------------------------------------------------------------------


def test_the_welcome_names_every_broker_and_its_lines_work_when_pasted(dev: Dev) -> None:
    produce_line, read_line = [line for line in dev.lines if line.startswith("curl")]

    assert dev.lines[0] == f"✓ ring of {BROKERS} brokers ready, data in ring"
    for ordinal in range(BROKERS):
        place = f"{dev.url(ordinal)}  pid {dev.pid(ordinal)}  log ring/{ordinal}.log"
        assert f"broker {ordinal}  {place}" in dev.lines
    for line, shown in ((produce_line, '"offset":0'), (read_line, '"value":{"origin":"SFO"}')):
        answer = subprocess.run(
            ["sh", "-c", line], capture_output=True, timeout=TIMEOUT_S, check=True
        )
        assert shown in answer.stdout.decode()


def test_a_ring_stays_what_it_is_and_all_of_it_ends_with_ctrl_c(tmp_path: Path) -> None:
    port = free_ring_port(3)
    with running(tmp_path, "--brokers", "3", port=port) as first:
        with Client(first.url(0)) as client:
            client.create_topic("t")
            cluster = client.ring().cluster_id
        pids = [first.pid(ordinal) for ordinal in range(BROKERS)]
        first.process.send_signal(signal.SIGINT)
        first.process.communicate(timeout=TIMEOUT_S)
        exit_code = first.process.returncode
    with running(tmp_path, port=port) as second, Client(second.url(2)) as client:
        topics = [topic.name for topic in client.topics()]
        again = client.ring(consistent=True)

    assert exit_code == 130
    assert all(map(ended, pids))
    assert second.lines[0].startswith("✓ ring of 3 brokers ready")
    assert (again.cluster_id, topics) == (cluster, ["t"])
    assert {registration.loss for registration in again.registrations} == {"clean"}


def test_a_ring_goes_on_while_most_of_its_brokers_live(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "3", port=free_ring_port(3)) as dev:
        os.kill(dev.pid(1), signal.SIGKILL)
        note = dev.noted()
        with Client(dev.url(0)) as client:
            is_committed = client.ring(consistent=True).cluster_id is not None
        os.kill(dev.pid(2), signal.SIGKILL)
        _, errors = dev.process.communicate(timeout=TIMEOUT_S)

    assert "broker 1 was killed by SIGKILL" in note
    assert note.endswith("The ring goes on with 0, 2\n")
    assert is_committed
    assert dev.process.returncode == 1
    assert "error: broker 2 was killed by SIGKILL" in errors.decode()
    assert (
        "too: most of the voters 0, 1, 2 are away, so the ring is stopped; start it again: "
        f"tailrace dev --data ring --port {dev.port}\n"
    ) in errors.decode()
    assert ended(dev.pid(0))


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "ring" / "2" / "data").mkdir(parents=True)
    (tmp_path / "ring" / "2" / "data" / "meta.json").write_text("{}")
    (tmp_path / "ring" / "ring.json").write_text('{"brokers": 3}')
    wanted = ("dev", "--data", "ring", "--brokers", "3", "--port", str(free_ring_port(3)))

    assert_fails(run(*wanted, cwd=tmp_path), 1, "the broker exited .*ring/2.log")


def test_a_wiped_broker_is_healed_and_a_wrong_number_of_brokers_is_refused(tmp_path: Path) -> None:
    """A broker's disk was wiped; then the file that says how many they are is wrong, and away."""
    port, file = free_ring_port(3), tmp_path / "ring" / "ring.json"
    wanted = ("dev", "--data", "ring", "--port", str(port))
    with running(tmp_path, "--brokers", "3", port=port) as first:
        [produce_line] = [line for line in first.lines if "partitionKey=SFO" in line]
        end_by_hand(first)
    lost = (int(produce_line.partition("http://127.0.0.1:")[2].partition("/")[0]) - port) // 10
    shutil.rmtree(tmp_path / "ring" / str(lost))
    with running(tmp_path, port=port) as second:
        produce_line, read_line = [line for line in second.lines if line.startswith("curl")]
        answers = [
            subprocess.run(["sh", "-c", line], capture_output=True, timeout=TIMEOUT_S, check=True)
            for line in (produce_line, read_line)
        ]
        end_by_hand(second)
    file.write_text('{"brokers": 5}')
    wrong = run(*wanted, cwd=tmp_path)
    file.unlink()
    away = run(*wanted, cwd=tmp_path)

    assert not [line for line in second.lines if line.startswith("range ")]
    assert b'"offset":0' in answers[0].stdout
    assert b'"value":{"origin":' in answers[1].stdout
    assert_fails(wrong, 1, 'ring.json says 5 brokers, .* one of 3: write {"brokers": 3} into it')
    assert_fails(away, 1, 'ring.json does not say .*write {"brokers": N} into it')
    assert not (tmp_path / "ring" / "3").exists()


def test_data_of_another_number_of_brokers_is_refused(tmp_path: Path, dev: Dev) -> None:
    copied = tmp_path / "ring"
    (copied / "0" / "data").mkdir(parents=True)
    shutil.copy(dev.data / "ring.json", copied)
    wanted = ("dev", "--data", "ring", "--brokers", "4", "--port", str(free_ring_port(4)))

    assert_fails(
        run(*wanted, cwd=tmp_path),
        1,
        "ring holds a ring of 3 brokers: start it with --brokers 3, .* ring grow --brokers 4",
    )
    assert_fails(
        run("dev", "--brokers", "3", "--port", str(dev.port), cwd=tmp_path),
        1,
        f"port {dev.port} cannot be used .*--port {dev.port + 30}",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["ring"]


# --- looking at it --------------------------------------------------------------------------------


def test_every_broker_shows_the_same_status(dev: Dev) -> None:
    shown = [reported(run("status", url=dev.url(ordinal))) for ordinal in range(BROKERS)]
    headlines = {each.splitlines()[0] for each in shown}
    rows = [line.split() for line in shown[0].splitlines()[2 : 2 + BROKERS]]

    assert len(headlines) == 1
    assert re.match(
        r"RING local   brokers 3/3   ranges 3   copies 3   under-replicated 0   metadata leader \d "
        r"\(term \d",
        headlines.pop(),
    )
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert all(re.fullmatch(r"\d+[smhd]", row[-1]) for row in rows)
    assert rows[0][1] == str(-(2**63))


def test_every_broker_shows_the_same_ring(dev: Dev) -> None:
    shown = [
        reported(run("ring", "status", "--consistent", url=dev.url(each)))
        for each in range(BROKERS)
    ]
    ranges = [each.partition("RANGE ")[2] for each in shown]

    assert len(set(ranges)) == 1
    _, *rows, drawing = ranges[0].splitlines()
    assert [line.split()[-2:] for line in rows] == [
        [lag, "open"] for lag in ("1:0,2:0", "0:0,2:0", "0:0,1:0")
    ]
    assert re.fullmatch(r"leader  ├0─+┼1─+┼2─+┤", drawing)
    assert all("brokers 3/3   ranges 3   copies 3" in each for each in shown)
    assert all("voters 0,1,2" in each for each in shown)


@pytest.mark.parametrize("ordinal", range(BROKERS))
def test_produce_and_consume_work_at_every_broker(dev: Dev, tmp_path: Path, ordinal: int) -> None:
    topic, file = f"orders-{ordinal}", tmp_path / "orders.ndjson"
    file.write_bytes(ndjson(EVENTS))
    url, other = dev.url(ordinal), dev.url((ordinal + 1) % BROKERS)
    keyed = reported(run("produce", topic, "-f", str(file), "--key", ".customer", url=url))
    plain = reported(run("produce", topic, "-f", str(file), url=other))
    read = reported(run("consume", topic, url=url)).splitlines()
    last = reported(run("consume", topic, "--last", "3", url=other)).splitlines()
    described = reported(run("topic", "describe", topic, url=url)).splitlines()[2:]

    assert keyed.startswith("✓ 400 events")
    assert plain.startswith("✓ 400 events")
    assert len(read) == 2 * len(EVENTS)
    assert len(last) == 3
    assert sum(int(row.split()[6]) for row in described) == 2 * len(EVENTS)
    assert {row.split()[3] for row in described} == {"0", "1", "2"}


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, "guessed"])
def test_who_does_not_know_the_secret_is_reported_where_it_comes_from(
    dev: Dev, secret: str | None
) -> None:
    refused = command(("ring", "found", "--brokers", "3"), dev.url(1), secret=secret)

    assert_fails(refused, 1, "Secret required: .*TAILRACE_TOKEN")


def test_who_does_may_found_the_ring_again_and_nothing_changes(dev: Dev) -> None:
    secret = (dev.data / "ring-secret").read_text().strip()
    found = command(("ring", "found", "--brokers", "3"), dev.url(1), secret=secret)
    other = command(("ring", "found", "--brokers", "4"), dev.url(1), secret=secret)

    assert reported(found).startswith("✓ ring of 3: ")
    assert_fails(other, 1, "Ring exists: ")


def test_a_ring_is_founded_and_its_lost_range_is_given_up(tmp_path: Path) -> None:
    """As docs/operations.md describes it: brokers started one by one."""
    ring = LocalRing(tmp_path, copies=1)
    try:
        ring.start_all()
        ring.until(lambda: ring.is_answered(0, "GET", "/live"), TIMEOUT_S)
        url = ring.brokers[0].url
        ring.until(lambda: "founded" in reported(run("ring", "status", url=url)), TIMEOUT_S)
        waits = reported(run("ring", "status", url=url))
        ring.until(
            lambda: not command(("ring", "found", "--brokers", "3"), url, secret=SECRET).returncode,
            TIMEOUT_S,
        )
        ring.wait_ready()
        ring.kill(1)
        ring.until(lambda: not ring.ring(0)["registrations"][1]["alive"], ADMITTED_S_MAX)
        away = reported(run("status", url=url)).splitlines()
        ring.wipe(1)
        ring.brokers[1].start()
        ring.until(lambda: waits_without_its_data(ring, 1), ADMITTED_S_MAX)
        lost = reported(run("ring", "status", url=url))
        [accept] = re.findall("tailrace (ring accept-loss 1 --broker) N", lost)
        accepted = command((*accept.split(), "1"), url, secret=SECRET)
        again = command((*accept.split(), "1"), url, secret=SECRET)
    finally:
        ring.end_all()

    assert "this broker is waiting to be founded" in waits
    assert "tailrace ring found --brokers N" in waits
    assert "brokers 2/3" in away[0]
    assert [line.split()[-1] for line in away[2:]][1] == "down"
    assert re.search(r"\n1 .* 1\?disk  +1 .*waiting\n", lost)
    assert reported(accepted).startswith("✓ range 1: led by broker 1 in epoch ")
    assert_fails(again, 1, "Refused by the ring: ")


def test_metadata_goes_on_with_one_voter(tmp_path: Path) -> None:
    with founded_ring(tmp_path) as ring:
        words, url = ("metadata", "recover", "--accept-loss"), ring.brokers[2].url
        too_early = command(words, url, secret=SECRET)
        ring.kill(0)
        ring.kill(1)
        ring.until(
            lambda: (
                not any(registration["alive"] for registration in ring.ring(2)["registrations"][:2])
            ),
            ADMITTED_S_MAX,
        )
        recovered = command(words, url, secret=SECRET)

    assert_fails(too_early, 1, "Refused by the ring: most voters are alive")
    assert re.match(r"✓ metadata goes on with voter 2, term \d{4}", reported(recovered))


def test_the_examples_of_these_verbs_are_what_is_tried_here() -> None:
    examples = {
        name: example
        for name in ("ring found", "ring accept-loss", "metadata recover")
        for example in VERBS[name].examples
    }

    for name, example in examples.items():
        assert example.startswith("TAILRACE_TOKEN=$(cat .tailrace/ring-secret) tailrace " + name)


def test_other_brokers_need_a_port_too() -> None:
    port = free_port_base()
    with socket.create_server(("127.0.0.1", port + 5)):
        check_ports_are_free(port)
        with pytest.raises(PortTakenError, match=f"port {port + 5} cannot be used"):
            check_ports_are_free(port, has_peers=True)
