"""Every command of README.md, CONTRIBUTING.md and docs/ is run, and prints what is written there.

Each document runs from its start to its end: against a broker of its own, README.md against a ring
of three, whose ports replace 9250 to 9253; in bash and one Python process; in a folder with the
project's `examples/` and `.venv` and the broker's data at `.tailrace/tutorial/0`.
`--rewrite` writes what was printed into the
document.

And `/docs`, the page that a browser makes of the API's description.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from urllib.request import urlopen

import pytest

from tailrace.local.broker import LISTENER_COUNT, LocalBroker
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.cli.commands import environment
from tests.support.docs.console import Program, is_as_shown, programs_of, rewritten, shown
from tests.support.http.browser import BROWSER, needs_browser
from tests.support.ring.local_ring import founded_ring
from tests.support.spark.spark import HAS_SPARK, MASTER, SPARK_CONF

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
DEFAULT_PORT = 9250
# What no test can run, by how it starts, and why.
NOT_RUN = {
    "make setup": "it makes the .venv that this test runs in",
    "make fmt": "it changes files",
    "make check": "it takes a minute, and this test is run beside it",
    "make test": "this test is part of it",
    "make simulation": "it is a test that CI runs",
    "make e2e": "it needs a Kubernetes; CI runs its first minutes where there is one",
    "make fuzz": "it is a test that CI runs",
    "make up": "CI runs it: .ci/run",
    ".venv/bin/pytest": "this test is part of it",
    "tailrace dev": "the broker of this test replaces it; test_cli.py runs it",
}
PROGRAMS = {
    path: programs
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    if (programs := programs_of(path.read_text()))
}
CURL_DEFAULTS = "silent\nshow-error\n"  # no progress bar, as when curl writes to a terminal

END_S_MAX = 20.0  # Java takes a moment
END_OF_PROGRAM = "<end of program> "
PYTHON = f"""\
import json, sys, traceback
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    status = 0
    try:
        exec(compile(json.loads(line), "<document>", "exec"), names)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        status = 1
    print("{END_OF_PROGRAM}" + str(status))
"""


class Interpreter:
    """Runs one program after the other, so that a later one sees what an earlier one has set."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, line: str) -> tuple[int, str]:
        """Exit status and what was printed; `line` prints END_OF_PROGRAM and the status last."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        printed = ""
        for text in self._process.stdout:
            before, end, status = text.partition(END_OF_PROGRAM)
            printed += before
            if end:
                return int(status), printed
        raise AssertionError(f"it has ended: {printed}")


class Reader:
    """Runs a document's programs as its reader would."""

    def __init__(self, broker: LocalBroker, shell: Interpreter, python: Interpreter) -> None:
        self._port = broker.port
        self._shell = shell
        self._python = python

    def run(self, program: Program) -> tuple[int, str]:
        """Exit status and what it printed, with the ports of the document."""
        text = re.sub(
            r"\b925([0-3])\b", lambda found: str(self._port + int(found[1])), program.text
        )
        if program.language == "python":
            status, printed = self._python.run(json.dumps(text))
        else:
            end = f"printf '{END_OF_PROGRAM}%d\\n' $?"
            status, printed = self._shell.run(f"eval {shlex.quote(text)} </dev/null; {end}")
        for index in range(LISTENER_COUNT):
            port = rf'((?:127\.0\.0\.1|localhost):|Port":){self._port + index}\b'
            printed = re.sub(port, rf"\g<1>{DEFAULT_PORT + index}", printed)
        return status, printed


@contextmanager
def interpreter(
    *words: str, folder: Path, variables: Mapping[str, str], stderr: int
) -> Iterator[Interpreter]:
    """A process that reads programs from its standard input; all that it started is gone after."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd=folder,
        env=variables,
        process_group=0,
        text=True,
    )
    with process:
        try:
            yield Interpreter(process)
            assert process.stdin
            process.stdin.close()  # it ends, and Spark's Java with it
            process.wait(END_S_MAX)
        finally:
            with suppress(ProcessLookupError):  # nothing is left
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def started_for(document: Path, folder: Path) -> Iterator[LocalBroker]:
    """The broker that the document's commands ask."""
    if document.name == "README.md":  # as `make up` runs it
        with founded_ring(folder / "ring") as ring:
            yield ring.brokers[0]
    else:
        with start_broker(folder) as broker:
            yield broker


@pytest.fixture
def reader(tmp_path: Path, path: Path) -> Iterator[Reader]:
    """In a fresh folder, with fresh brokers."""
    folder, home = tmp_path / "folder", tmp_path / "home"
    data = folder / ".tailrace" / "tutorial"
    for each in (data, home):
        each.mkdir(parents=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / ".venv").symlink_to(sys.prefix)
    (home / ".curlrc").write_text(CURL_DEFAULTS)
    spark_conf = {"spark.master": MASTER} | SPARK_CONF
    (home / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in spark_conf.items())
    )
    with started_for(path, tmp_path) as broker:
        (data / "0").symlink_to(broker.data_dir)
        variables = environment(broker.url) | {
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "SPARK_CONF_DIR": str(home),
        }
        with (
            interpreter(
                "bash", stderr=subprocess.STDOUT, folder=folder, variables=variables
            ) as shell,
            interpreter(
                "python",
                *("-u", "-c", PYTHON),
                stderr=subprocess.DEVNULL,  # Java's warnings
                folder=folder,
                variables=variables,
            ) as python,
        ):
            yield Reader(broker, shell, python)


def reason_not_to_run(program: Program) -> str | None:
    """None: it is to be run."""
    for start, reason in NOT_RUN.items():
        if program.text.startswith(start):
            return reason
    return None


def uses_spark(programs: Sequence[Program]) -> bool:
    """Whether any of a document's programs does; they then share one session."""
    return any("spark" in program.text for program in programs)


def reported(path: Path, program: Program, problem: str) -> str:
    """A program that did not do what its document says, and its line."""
    return f"{path.relative_to(ROOT)}:{program.line + 1}: {program.text}\n{problem}"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.spark] if uses_spark(programs) else [], id=path.name)
        for path, programs in PROGRAMS.items()
    ],
)
def test_a_document_prints_what_it_says(
    pytestconfig: pytest.Config, reader: Reader, path: Path
) -> None:
    if uses_spark(PROGRAMS[path]) and not HAS_SPARK and "CI" not in os.environ:
        pytest.skip("no Java or no pyspark")
    text = path.read_text()
    failures: list[str] = []
    differing: dict[Program, str] = {}
    for program in PROGRAMS[path]:
        if reason_not_to_run(program):
            continue
        status, printed = reader.run(program)
        if (status != 0) != printed.startswith("error: "):
            failures.append(reported(path, program, f"--- exit status {status}\n{printed}"))
        elif program.is_shown and not is_as_shown(shown(text, program), printed):
            differing[program] = printed
    if pytestconfig.getoption("rewrite"):
        path.write_text(rewritten(text, differing))
    else:
        failures += [
            reported(path, program, f"--- shown\n{shown(text, program)}\n--- printed\n{printed}")
            for program, printed in differing.items()
        ]
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


def test_what_is_not_run_is_in_a_document() -> None:
    programs = [program for programs in PROGRAMS.values() for program in programs]

    assert [
        start
        for start in NOT_RUN
        if not any(program.text.startswith(start) for program in programs)
    ] == []


# --- the page -------------------------------------------------------------------------------------


def test_the_page_may_fetch_from_its_broker_only(shared_broker: RunningBroker) -> None:
    with urlopen(f"{shared_broker.url}/", timeout=10) as answer:  # redirects
        policy = dict(
            part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
        )

    assert answer.url == f"{shared_broker.url}/docs"
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert {source for each in policy.values() for source in each.split()} <= {
        "'none'",
        "'self'",
        "'unsafe-inline'",
        "data:",
    }


def elements_of(url: str, profile: Path) -> str:
    """What a browser makes of a page."""
    command = [
        str(BROWSER),
        *("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
        *("--virtual-time-budget=10000", "--dump-dom", url),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@needs_browser
def test_the_page_says_when_it_cannot_read_the_description(tmp_path: Path) -> None:
    page = files("tailrace_broker.net.api") / "docs.html"

    html = elements_of(f"file://{page}", tmp_path)

    assert re.search(
        r'class="alert">/v1/openapi.json cannot be read: .* when the broker runs', html
    )


@needs_browser
def test_a_browser_shows_every_route(shared_broker: RunningBroker, tmp_path: Path) -> None:
    with urlopen(f"{shared_broker.url}/v1/openapi.json", timeout=10) as answer:
        paths = json.load(answer)["paths"]
    routes = {
        f"{method.upper()} {path}" for path, operations in paths.items() for method in operations
    }

    html = elements_of(f"{shared_broker.url}/docs", tmp_path)

    headings = re.findall(r"<h3>(.*?)</h3>", html)
    assert sorted(re.sub(r"<.*?>", " ", heading).split() for heading in headings) == sorted(
        route.split() for route in routes
    )
    assert html.count("curl ") == len(routes)
