"""Wrong calls: each is reported in one sentence with what to do, exit 1 or 2, no traceback.

What they print is in tests/golden/wrong_calls.txt; `--rewrite` writes it again.
"""

import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tailrace.cli.verbs.dev import PORT_STRIDE
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, free_port_base, start_broker
from tests.support.cli.commands import CLIENT_FOLDER, TIMEOUT_S, environment
from tests.support.spark.spark import HAS_SPARK

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[2] / "golden" / "wrong_calls.txt"
BASH = shutil.which("bash") or "bash"
BODY_BYTES_MAX = 2048
AGGREGATE = "python -m tailrace.spark.jobs.aggregate --topic orders --group-by .a --count"
NO_JAVA = {"PATH": str(Path(sys.executable).parent), "JAVA_HOME": "/nonexistent"}
# `tailrace` and `python` without any package but the standard library.
BARE = f"""
python() {{ PYTHONPATH={CLIENT_FOLDER} {sys.executable} -S "$@"; }}
tailrace() {{ python -c 'from tailrace.cli.main import main; main()' "$@"; }}
"""

# name -> command, as a user types it. PORT: the broker's first; PORT2: its second; FREE: nobody
# listens there.
CALLS = {
    "no broker": "tailrace topic list --url http://127.0.0.1:FREE",
    "wrong port": "tailrace topic list --url http://127.0.0.1:PORT2",
    "no such topic": "echo 1 | tailrace produce nosuch",
    "no events": "tailrace produce nosuch </dev/null",
    "no such topic to read": "tailrace consume nosuch",
    "no such group": "tailrace group describe nosuch",
    "reset to nowhere": "tailrace group reset billing",
    "bench of a topic in use": "tailrace bench orders",
    "bad JSON": r"""printf '{"a":1}\n{"a":}\n' | tailrace produce orders""",
    "missing extra of dump": "tailrace dump 00000000000000000000.log --records",
    "missing extra of dev": "tailrace dev --port FREE",
    "missing extra of Spark": AGGREGATE,
    "no Java": AGGREGATE,
    "disk full": "echo 1 | tailrace produce full",
    "port taken": "tailrace dev --port PORT",
    "bad offset": "tailrace consume ten --partition 0 --from 99",
    "too big": "head -c 3000 /dev/zero | tr '\\0' 1 | tailrace produce orders",
    "unknown option": "tailrace consume orders --form earliest",
    "unknown content type": "curl -sS -w 'HTTP %{http_code}\\n' -H 'content-type: text/xml' "
    "-d '<a/>' http://127.0.0.1:PORT/v1/topic/orders/messages",
}


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Takes small bodies, creates no topic automatically; has three, and ten events in one."""
    settings = {"max_request_bytes": BODY_BYTES_MAX, "auto_create_topics": False}
    with start_broker(tmp_path_factory.mktemp("small"), **settings) as running:
        with Client(running.url) as client:
            client.create_topic("full")
            client.create_topic("orders")
            client.create_topic("ten", partitions_per_range=1)
            client.produce_lines("ten", b"1\n" * 10)
        running.restart()  # brings the events from the journal to a segment
        yield running


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_sentence_with_the_remedy(
    small_broker: RunningBroker, tmp_path: Path, pytestconfig: pytest.Config, name: str
) -> None:
    if name == "no Java" and not HAS_SPARK:
        pytest.skip("no PySpark here, which would look for Java")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        said = said_by(name, small_broker, tmp_path)
    calls = read_golden()
    if pytestconfig.getoption("rewrite"):
        calls[name] = said
        GOLDEN.write_text("".join(f"== {call}\n{calls[call]}" for call in CALLS if call in calls))

    assert said == calls[name]
    assert is_one_sentence(name, said)


def is_one_sentence(name: str, said: str) -> bool:
    """A problem document for HTTP clients; else one line on stderr, and exit 1 or 2.

    A command to go on with may follow on a line of its own.
    """
    command = re.escape(CALLS[name])
    pattern = (
        r"\{.*\}\nHTTP 4\d\d\nexit 0\n"
        if "curl" in command
        else "error: .*\n(  tailrace .*\n)?exit [12]\n"
    )
    return re.fullmatch(rf"\$ {command}\n{pattern}", said) is not None


def said_by(name: str, broker: RunningBroker, folder: Path) -> str:
    """The command with what it printed, and its exit status; without what differs from run to run.

    A segment lies in the folder where it runs.
    """
    segment = min((broker.data_dir / "data").rglob("*.log"))
    (folder / segment.name).write_bytes(segment.read_bytes())
    ports = {
        "PORT2": broker.port + 1,
        "PORT": broker.port,
        "NEXT": broker.port + PORT_STRIDE,
        "FREE": free_port_base(),
    }
    command = CALLS[name]
    for placeholder, port in ports.items():
        command = command.replace(placeholder, str(port))
    result = SURROUNDINGS.get(name, run_in_bash)(command, broker)
    said = result.stdout + result.stderr
    for placeholder, port in ports.items():
        said = said.replace(str(port), placeholder)
    said = re.sub(r"(?<=--resume )\S+", "TOKEN", said)
    said = re.sub(r"\(partition [0-3]: ", "(partition P: ", said)  # by the producer's random id
    said = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "TOPIC-ID", said)
    said = said.replace(str(broker.data_dir), "DATA").replace(str(CLIENT_FOLDER.parent), "CLONE")
    return f"$ {CALLS[name]}\n{said.rstrip()}\nexit {result.returncode}\n"


# --- surroundings ---------------------------------------------------------------------------------

Result = subprocess.CompletedProcess[str]


def run_in_bash(
    command: str, broker: RunningBroker, variables: Mapping[str, str] | None = None
) -> Result:
    """As a user of this broker does."""
    return subprocess.run(
        [BASH, "-o", "pipefail", "-c", command],
        env=environment(broker.url) | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def run_bare(command: str, broker: RunningBroker) -> Result:
    """Where nothing but the base package is installed."""
    return run_in_bash(f"{BARE}\n{command}", broker)


def run_without_java(command: str, broker: RunningBroker) -> Result:
    """Where neither PATH nor JAVA_HOME has Java."""
    return run_in_bash(command, broker, NO_JAVA)


def run_on_full_disk(command: str, broker: RunningBroker) -> Result:
    """While the kernel lets no file of the broker grow (RLIMIT_FSIZE)."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        return run_in_bash(command, broker)
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


SURROUNDINGS: dict[str, Callable[[str, RunningBroker], Result]] = {
    "missing extra of dump": run_bare,
    "missing extra of dev": run_bare,
    "missing extra of Spark": run_bare,
    "no Java": run_without_java,
    "disk full": run_on_full_disk,
}


def read_golden() -> dict[str, str]:
    """What each call prints, by its name."""
    text = GOLDEN.read_text() if GOLDEN.exists() else ""
    sections = re.split(r"^== (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(sections[::2], sections[1::2], strict=True))
