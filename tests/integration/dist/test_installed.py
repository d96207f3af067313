"""The wheel of `make dist` in an empty environment: alone, then with the extra `broker`.

Packages are those of docker/broker.lock, with their hashes.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailrace
from tailrace.cli.main import VERBS
from tailrace.local.broker import plain_environment
from tests.support.broker.fixtures import free_port_base
from tests.support.cli.commands import TIMEOUT_S
from tests.support.dists import ROOT, run_dist

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

INSTALL_S_MAX = 240.0  # on a busy machine
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
EVENT = b'{"origin":"SFO"}'
# What needs an extra, and which; FILE: a segment, PORT: free ports.
NEEDS = {
    "tailrace dev --port PORT": "broker",
    "tailrace dump FILE": "broker",
    "tailrace verify FOLDER": "broker",
    "tailrace doctor --url http://127.0.0.1:PORT": "spark",
    "python -m tailrace.spark.jobs.aggregate --topic flights": "spark",
    "python -c 'import tailrace.aio'": "aio",
    "python -c 'import tailrace; tailrace.connect().read(\"t\").to_arrow()'": "arrow",
}


class Installed:
    """A virtual environment that had nothing before the wheel was installed."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel = wheel
        self._bin = folder / "bin"
        venv.create(folder, symlinks=True)
        self.pip("install", "--no-index", str(wheel))

    def command(self, line: str) -> list[str]:
        """Its own `tailrace` or `python`; -I: nothing of the working directory is imported."""
        name, *words = shlex.split(line)
        return [str(self._bin / name), *(["-I"] if name == "python" else []), *words]

    def environment(self) -> dict[str, str]:
        """As after its activation."""
        return {**plain_environment(), "PATH": f"{self._bin}:{os.environ['PATH']}"}

    def run(
        self, line: str, folder: Path, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """A command in `folder`, to its end."""
        return subprocess.run(
            self.command(line),
            cwd=folder,
            env=self.environment(),
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def pip(self, *words: str, variables: Mapping[str, str] | None = None) -> None:
        """`pip` for this environment, which has none."""
        subprocess.run(
            [*PIP, "--python", str(self._bin / "python"), *words],
            env=os.environ | {"PIP_NO_COMPILE": "1"} | dict(variables or {}),
            timeout=INSTALL_S_MAX,
            check=True,
        )

    @contextmanager
    def dev(self, folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
        """`tailrace dev`, ready."""
        process = subprocess.Popen(
            self.command(f"tailrace dev --port {port}"),
            cwd=folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                assert process.stdout
                assert process.stderr
                if not any(line.strip().startswith(b"Ctrl-C") for line in process.stdout):
                    pytest.fail(process.stderr.read().decode())
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this working tree."""
    target = tmp_path_factory.mktemp("dist")
    done = run_dist(target)
    assert done.returncode == 0, done.stderr
    return target / f"tailrace-{tailrace.__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    """The wheel alone."""
    return Installed(tmp_path_factory.mktemp("base"), wheel)


def test_the_wheel_alone_has_the_command_line(base: Installed, tmp_path: Path) -> None:
    version = base.run("tailrace --version", tmp_path)
    overview = base.run("tailrace --help", tmp_path)
    helps = {verb: base.run(f"tailrace {verb} --help", tmp_path) for verb in VERBS}

    assert version.stdout.decode() == f"tailrace {tailrace.__version__}\n"
    assert [verb for verb in VERBS if verb not in overview.stdout.decode()] == []
    assert [verb for verb, done in helps.items() if done.returncode or done.stderr] == []


@pytest.mark.parametrize("line", NEEDS)
def test_what_needs_an_extra_names_the_command_that_adds_it(
    base: Installed, tmp_path: Path, line: str
) -> None:
    stored = ROOT / "tests" / "golden" / "formats"
    command = line.replace("FILE", str(stored / "segment.log")).replace("FOLDER", str(stored))

    done = base.run(command.replace("PORT", str(free_port_base())), tmp_path)

    said = (done.stdout + done.stderr).decode()
    assert commands_in(said) == [f"pip install '{base.wheel}[{NEEDS[line]}]'"], said


def commands_in(text: str) -> list[str]:
    """Those of pip."""
    return re.findall(r"pip install .*'", text)


def test_the_command_that_is_named_brings_a_broker_that_stores_and_serves_an_event(
    wheel: Path, tmp_path: Path
) -> None:
    installed = Installed(tmp_path / "venv", wheel)
    packages, folder = tmp_path / "packages", tmp_path / "empty"
    folder.mkdir()
    port = free_port_base()
    url = f"--url http://127.0.0.1:{port}"
    refused = installed.run(f"tailrace dev --port {port}", folder)
    [command] = commands_in(refused.stderr.decode())
    installed.pip(
        *("download", "--require-hashes", "--only-binary", ":all:", "--dest", str(packages)),
        *("--requirement", str(ROOT / "docker" / "broker.lock")),
    )
    installed.pip(
        *shlex.split(command)[1:],
        variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages)},
    )

    with installed.dev(folder, port) as dev:
        produced = installed.run(f"tailrace produce flights {url} --key .origin", folder, EVENT)
        consumed = installed.run(f"tailrace consume flights {url} --last 1 -o json", folder)
        dev.send_signal(signal.SIGINT)
        _, errors = dev.communicate(timeout=TIMEOUT_S)

    assert produced.returncode == 0, produced.stderr.decode()
    assert json.loads(consumed.stdout)["value"] == {"origin": "SFO"}
    assert (dev.returncode, errors) == (130, b"")
