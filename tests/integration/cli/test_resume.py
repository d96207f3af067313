"""`tailrace produce --resume`: whatever cuts a run, each line is stored exactly once in the end."""

import gzip
import os
import re
import shlex
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import pytest

from tailrace.cli.producing.form import Form
from tailrace.cli.producing.requests import Target
from tailrace.cli.producing.resume import Token
from tailrace.local.broker import HOST
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, refusing_url
from tests.support.cli.commands import TIMEOUT_S, assert_fails, ndjson, reported, run, started
from tests.support.ring.local_ring import founded_ring

pytestmark = pytest.mark.integration

EVENTS = [{"k": f"k{n % 60}", "n": n, "pad": "x" * 300} for n in range(20_000)]
LINES = ndjson(EVENTS)
RESUME_S_MAX = 90.0  # the command's 30 s, on a slow machine
KEYED = ("--key", ".k")
PRODUCER_ID = "0123456789abcdef" * 2
REMEMBERED_REQUESTS = 1_000  # of a producer, by each partition: docs/protocol.md


def resumed(errors: str, content: bytes, url: str) -> "subprocess.CompletedProcess[bytes]":
    """The command that a run has printed as its last line."""
    [*_, command] = errors.splitlines()
    tailrace, *words = shlex.split(command)
    assert (tailrace, words[0], words[-2]) == ("tailrace", "produce", "--resume")
    return run(*words, url=url, stdin=content)


def count_of(client: Client, topic: str) -> int:
    return sum(row.high_watermark or 0 for row in client.offsets([topic]))


def numbers_by_key(client: Client, topic: str) -> dict[str, list[int]]:
    """The `n` of each key's events, in the order of their partition."""
    stored = defaultdict(list)
    for record in client.read(topic):
        event = record.json()
        stored[event["k"]].append(event["n"])
    return stored


def assert_stored_once(client: Client, topic: str, events: Sequence[dict[str, object]]) -> None:
    """In order per key too."""
    expected = defaultdict(list)
    for event in events:
        expected[event["k"]].append(event["n"])
    assert numbers_by_key(client, topic) == expected


def begin(process: "subprocess.Popen[bytes]", client: Client, topic: str, content: bytes) -> None:
    """Write to the command until events of it are stored."""
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()
    while not count_of(client, topic):
        assert process.poll() is None


@pytest.mark.timeout(180)  # two starts of a ring and `RESUME_S_MAX`
def test_a_run_that_a_dead_broker_cut_is_resumed_without_loss_and_without_doubles(
    tmp_path: Path,
) -> None:
    """One run waits until its delivery timeout, the other until Ctrl-C."""
    half = len(LINES) // 2
    with (
        founded_ring(tmp_path, copies=1) as ring,
        ThreadPoolExecutor(2) as threads,
    ):
        url = ring.brokers[0].url
        with (
            Client(url) as client,
            started("produce", "patient", *KEYED, url=url) as patient,
            started("produce", "cut", *KEYED, url=url) as cut,
        ):
            client.create_topic("patient", partitions_per_range=2)
            client.create_topic("cut", partitions_per_range=2)
            begin(patient, client, "patient", LINES[:half])
            begin(cut, client, "cut", LINES[:half])
            ring.kill(1)
            ends = [
                threads.submit(process.communicate, LINES[half:], RESUME_S_MAX)
                for process in (patient, cut)
            ]
            ring.until(lambda: not ring.ring(0)["registrations"][1]["alive"], RESUME_S_MAX)
            cut.send_signal(signal.SIGINT)
            errors, cut_errors = [end.result()[1].decode() for end in ends]
            ring.brokers[1].start()
            ring.wait_ready(1)
            ring.until(lambda: ring.ring(0)["ranges"][1]["state"] == "open", RESUME_S_MAX)
            stored_count = {topic: count_of(client, topic) for topic in ("patient", "cut")}
            results = [
                resumed(errors, LINES, url),
                resumed(cut_errors, LINES, url),
            ]
            assert_stored_once(client, "patient", EVENTS)
            assert_stored_once(client, "cut", EVENTS)

    assert (patient.returncode, cut.returncode) == (1, 130)
    assert cut_errors.startswith("interrupted: ")
    for topic, said in (("patient", errors), ("cut", cut_errors)):
        found = re.search(
            r"([\d,]+) events are stored \((.*?)\)(?:, and perhaps more of lines (\d+) to (\d+))?; "
            r"the first line that is not (?:known to be stored )?is line (\d+)[.;] ",
            said,
        )
        assert found, said
        partitions = [int(n.replace(",", "")) for n in re.findall(r": ([\d,]+)", found[2])]
        said_count = int(found[1].replace(",", ""))
        assert said_count == sum(partitions)
        assert said_count <= stored_count[topic] < len(EVENTS)
        if topic == "patient" or found[3]:  # the other may be between two requests
            assert int(found[3]) <= int(found[5]) <= int(found[4])
    assert [result.returncode for result in results] == [0, 0]


@pytest.mark.parametrize("options", [(), KEYED], ids=["without_key", "with_key"])
def test_a_run_is_resumed_when_nobody_knows_whether_its_last_request_was_stored(
    broker: RunningBroker, options: Sequence[str]
) -> None:
    """The broker is killed under load, and another server refuses what is sent again."""
    with started("produce", "t", *options, url=broker.url) as process, Client(broker.url) as client:
        client.create_topic("t")
        begin(process, client, "t", LINES[: len(LINES) // 2])
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(
                process.communicate, LINES[len(LINES) // 2 :], timeout=RESUME_S_MAX
            )
            broker.kill()
            with socket.create_server((HOST, broker.port)) as server:
                server.settimeout(TIMEOUT_S)
                refuse(server)
                _, errors = ended.result()
        broker.restart()
        result = resumed(errors.decode(), LINES, broker.url)
        assert_stored_once(client, "t", EVENTS)

    assert process.returncode == 1
    assert reported(result).startswith("✓ ")


def refuse(server: socket.socket) -> None:
    """Answer one request as nobody answers who could take it another time."""
    connection, _ = server.accept()
    with connection:
        assert connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@pytest.mark.parametrize("options", [(), KEYED], ids=["without_key", "with_key"])
def test_a_run_goes_on_behind_a_line_that_was_corrected(
    broker: RunningBroker, options: Sequence[str]
) -> None:
    lines = LINES.splitlines(keepends=True)
    lines[11_110] = b'{"k":}\n'
    cut = run("produce", "t", *options, url=broker.url, stdin=b"".join(lines))
    result = resumed(cut.stderr.decode(), LINES, broker.url)
    with Client(broker.url) as client:
        assert_stored_once(client, "t", EVENTS)

    assert b"error: line 11111 is not JSON (" in cut.stderr
    assert b" 11,110 events are stored (partition " in cut.stderr
    assert b"Correct it, and store the rest of the same input, each line once:" in cut.stderr
    assert reported(result).startswith("✓ 8,890 events, ")


@pytest.mark.parametrize("options", [(), KEYED], ids=["without_key", "with_key"])
def test_a_resumed_run_that_is_cut_or_repeated_says_all_that_is_stored(
    broker: RunningBroker, options: Sequence[str]
) -> None:
    lines = LINES.splitlines(keepends=True)
    twice = b"".join([*lines[:15_000], b'{"k":}\n', *lines[15_001:]])
    once = b"".join([*lines[:11_110], b'{"k":}\n', *lines[11_111:]])
    cut = run("produce", "t", *options, url=broker.url, stdin=once)
    again = resumed(cut.stderr.decode(), twice, broker.url)
    repeated = resumed(cut.stderr.decode(), twice, broker.url)
    with refusing_url() as url:
        unreached = resumed(repeated.stderr.decode(), LINES, url)
    ends = [resumed(unreached.stderr.decode(), LINES, broker.url) for _ in range(2)]
    stale = resumed(cut.stderr.decode(), LINES, broker.url)
    with Client(broker.url) as client:
        assert_stored_once(client, "t", EVENTS)

    for result, own in ((again, "3,890"), (repeated, "none"), (unreached, "none")):
        said = rf" 15,000 events are stored, {own} of them by this run(?: \(.*\))?; the first line "
        assert re.search(f"{said}that is not is line 15001", result.stderr.decode())
    assert reported(ends[0]).startswith("✓ 5,000 events, ")
    assert "; all 20,000 events of the input are stored, " in reported(ends[0])
    assert reported(ends[1]).startswith(
        "✓ all 20,000 events of the input are stored, and were before"
    )
    assert_fails(stale, 1, "another run has gone on from this --resume already, with other reque")


def test_a_run_goes_on_behind_the_cut_of_a_compressed_file(
    broker: RunningBroker, tmp_path: Path
) -> None:
    file = tmp_path / "events.ndjson.gz"
    events = [{"k": "k", "n": n, "noise": os.urandom(200).hex()} for n in range(10_000)]
    whole = gzip.compress(ndjson(events), 1)
    file.write_bytes(whole[: len(whole) // 2])
    cut = run("produce", "t", "-f", str(file), url=broker.url)
    file.write_bytes(whole)
    result = resumed(cut.stderr.decode(), b"", broker.url)
    with Client(broker.url) as client:
        assert_stored_once(client, "t", events)

    assert b"is not a whole gzip file" in cut.stderr
    assert reported(result).startswith("✓ ")


def test_an_interrupted_file_is_resumed(broker: RunningBroker, tmp_path: Path) -> None:
    """Its first half comes from a pipe of the same bytes."""
    file = tmp_path / "events.ndjson"
    file.write_bytes(LINES)
    with started("produce", "t", *KEYED, url=broker.url) as process, Client(broker.url) as client:
        client.create_topic("t")
        begin(process, client, "t", LINES[: len(LINES) // 2])
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        token = errors.decode().split()[-1]
        result = run("produce", "t", "-f", str(file), *KEYED, "--resume", token, url=broker.url)
        assert_stored_once(client, "t", EVENTS)

    assert process.returncode == 143
    assert reported(result).startswith("✓ ")


def test_another_input_or_another_option_is_refused_and_nothing_is_stored(
    broker: RunningBroker,
) -> None:
    cut = run("produce", "t", *KEYED, url=broker.url, stdin=b'{"k":"a"}\n{"k":"b"}\n1\n')
    token = cut.stderr.decode().split()[-1]
    resume = ("--resume", token)
    same = b'{"k":"a"}\n{"k":"b"}\n{"k":"c"}\n'
    for words, stdin in (
        (("t", *resume, *KEYED), b'{"k":"A"}\n{"k":"b"}\n{"k":"c"}\n'),
        (("t", *resume, "--key-separator", ":"), same),
        (("other", *resume, *KEYED), same),
    ):
        refused = run("produce", *words, url=broker.url, stdin=stdin)
        assert_fails(
            refused,
            1,
            "--resume does not fit: the topic, an option, or the input up to line 2 differs from "
            "the run that printed it, and nothing was sent. Check them, and give the same",
        )
    short = run("produce", "t", *resume, *KEYED, url=broker.url, stdin=b'{"k":"a"}\n')
    malformed = run("produce", "t", "--resume", token[:-1], url=broker.url, stdin=same)
    with Client(broker.url) as client:
        stored_count = count_of(client, "t")

    assert_fails(short, 1, "--resume does not fit: the input has fewer than 2 lines, and nothing")
    assert_fails(malformed, 2, '--resume: ".*" is no token that tailrace produce has printed; copy')
    assert stored_count == 2


def test_what_stored_nothing_has_nothing_to_resume(broker: RunningBroker) -> None:
    reported(run("topic", "create", "t", url=broker.url))
    assert_fails(run("produce", "t", url=broker.url, stdin=b"{\n"), 1, r"line 1 is not JSON \(.*\)")
    assert_fails(run("produce", "t", "--key", ".k", "1", url=broker.url), 1, "event 1 has no .k")
    with Client(broker.url) as client:
        assert count_of(client, "t") == 0


def test_a_run_is_resumed_long_after_brokers_have_forgotten_its_request(
    broker: RunningBroker,
) -> None:
    """Only what the token knows to be stored is taken for stored."""
    events = [{"k": f"k{n}", "n": n} for n in range(100)]
    with Client(broker.url) as client:
        client.create_topic("t", partitions_per_range=2)
        stored = client.produce_records(
            "t",
            [str(event["k"]).encode() for event in events],
            ndjson(events).splitlines(),
            producer_id=PRODUCER_ID,
            sequence=5_000,
        )
        for sequence in range(REMEMBERED_REQUESTS):
            client.produce_records(
                "t", [b"k0", b"k1", b"k3"], [b"0"] * 3, producer_id=PRODUCER_ID, sequence=sequence
            )
        counts = [row.high_watermark or 0 for row in client.offsets(["t"])]
        checksum = crc32(ndjson(events), Target("t", Form(key_path=("k",))).checksum)
        known = Token(
            PRODUCER_ID, 5_000, 1, 100, checksum, tuple(part.partition for part in stored)
        )
        resume = ("produce", "t", *KEYED, "--resume")
        result = run(*resume, str(known), url=broker.url, stdin=ndjson(events))
        unknown = run(*resume, str(known._replace(stored=())), url=broker.url, stdin=ndjson(events))
        still = [row.high_watermark for row in client.offsets(["t"])]
        [_, behind, _, again] = unknown.stderr.decode().splitlines()
        skipped = resumed(behind, ndjson([*events, events[0]]), broker.url)
        after_skip = count_of(client, "t")

    assert len(stored) == 2
    assert reported(result).startswith("✓ ")
    assert unknown.returncode == 1
    assert b"error: Sequence unknown: sequence 5000 was used so long ago" in unknown.stderr
    assert still == counts
    assert (reported(skipped)[:9], after_skip - sum(counts)) == ("✓ 1 event", 1)
    assert again.endswith(f" --resume {known._replace(sequence=5_001, stored=())}")
