"""Every example in a verb's help does what it says."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tailrace.cli.main import VERBS
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, free_ring_port, start_broker
from tests.support.cli.commands import TAILRACE, TIMEOUT_S, environment, ndjson

pytestmark = pytest.mark.integration

BASH = shutil.which("bash") or "bash"
EVENTS = ndjson([{"customer": f"c{n}", "n": n} for n in range(1_000)])
SEGMENT_BYTES = 1 << 20  # the least that is allowed
PARTITIONS = 8  # as the example of `topic create` wants them
RECORDS_PER_PARTITION = 1_701  # one behind the offset in an example of `consume`
# They need a ring of several brokers, or lost data: test_ring.py, test_dev_start.py,
# storage/test_damage_at_a_start.py.
OF_RINGS_AND_LOSSES = {
    "dev start",
    "ring found",
    "ring grow",
    "ring shrink",
    "ring drain",
    "ring accept-loss",
    "metadata recover",
    "topic accept-loss",
}
EXAMPLES = [(name, example) for name, verb in VERBS.items() for example in verb.examples]
# They go on until Ctrl-C; what they print first.
ENDLESS = {
    "tailrace dev --brokers 3": "✓ ring of 3 brokers ready",
    "tailrace dev": "✓ broker 0 ready",
    "tailrace consume orders --last 1 -f": '{"partition":',
    "tailrace consume orders --group billing -f": '{"topic":',
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, Path]]:
    """A broker, and the folder of a finished partition of an earlier one."""
    folder = tmp_path_factory.mktemp("finished")
    with start_broker(folder, segment_bytes=SEGMENT_BYTES) as earlier:
        with Client(earlier.url) as client:
            for seed in range(2):  # the second finishes the segment that the first has filled
                noise = Random(seed).randbytes(SEGMENT_BYTES).hex()
                client.produce_lines("t", f'"{noise}"'.encode(), key="k")
            client.produce("t", b"1", key="k")
        earlier.stop()
        segment = next((earlier.data_dir / "data").rglob("*.log"))
    with start_broker(tmp_path_factory.mktemp("examples")) as running:
        yield running, segment.parent


def delete_once(client: Client, topic: str) -> None:
    """Let a topic of this name be in the trash, and no other."""
    if topic not in [each.name for each in client.topics()]:
        client.create_topic(topic)
    client.delete_topic(topic)


def prepare(broker: RunningBroker, segments: Path, folder: Path) -> None:
    """What the examples take for granted: files in the folder, and a topic with some records."""
    for file in segments.iterdir():
        shutil.copy(file, folder)
    shutil.copy(next(segments.parents[1].glob("journal/*.journal")), folder / "0.journal")
    for name in ("orders.ndjson", "app.ndjson"):
        (folder / name).write_bytes(EVENTS)
    (folder / ".local/share/bash-completion/completions").mkdir(parents=True)
    with Client(broker.url) as client:
        if "orders" in [topic.name for topic in client.topics()]:
            client.delete_topic("orders")
        client.create_topic("orders", partitions_per_range=PARTITIONS, json_check=True)
        while min(len(row.readable()) for row in client.offsets(["orders"])) < (
            RECORDS_PER_PARTITION
        ):
            client.produce_lines("orders", EVENTS)  # without keys: to all partitions in turn
        client.register("c", "billing", ["orders"], on_new_group="startFromEarliest")
        client.goodbye("c")


@pytest.mark.parametrize(
    ("name", "example"), [each for each in EXAMPLES if each[0] not in OF_RINGS_AND_LOSSES]
)
def test_an_example_works(
    stored: tuple[RunningBroker, Path], tmp_path: Path, name: str, example: str
) -> None:
    broker, segments = stored
    prepare(broker, segments, tmp_path)
    if name == "topic restore":
        with Client(broker.url) as client:
            delete_once(client, "invoices")
    command = example.replace("/tmp/", "").replace(" --port 19250", "")
    if name == "dev":
        command += f" --port {free_ring_port(3)}"
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "TOKEN": "secret"}
    surroundings = environment(broker.url) | home
    if name in ("context use", "context delete"):
        context = ("context", "set", "staging", broker.url)
        subprocess.run([TAILRACE, *context], env=surroundings, capture_output=True, check=True)
    process = subprocess.Popen(
        [BASH, "-o", "pipefail", "-c", f"exec {command}" if "|" not in command else command],
        cwd=tmp_path,
        env=surroundings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    endless = [first for start, first in ENDLESS.items() if example.startswith(start)]
    with process:
        if endless:
            assert process.stdout is not None
            assert process.stdout.readline().decode().startswith(endless[0])
            process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=TIMEOUT_S)

    assert errors == (b"created topic logs (4 partitions)\n" if "produce logs" in command else b"")
    assert process.returncode == (130 if endless else 0)
    assert endless or printed or re.search(r"> (\S+)$|--at ", example)


def test_every_verb_has_an_example_and_each_is_one_of_its_own() -> None:
    assert {name for name, _ in EXAMPLES} == set(VERBS)
    assert all(f"tailrace {name}" in example for name, example in EXAMPLES)
