"""The cluster of the tests by kubectl and helm, and a log of what is done to it.

What a scenario shows is printed with the seconds since its start: `pytest -s` is the log.
"""

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.provider import ROOT, Provider, keeps_all

Document = Mapping[str, Any]
COMMAND_S_MAX = 120.0
WAIT_S_MAX = 180.0
POLL_S = 0.2


class CommandError(AssertionError):
    """A command failed; `printed` is what it said."""

    def __init__(self, command: str, printed: str) -> None:
        super().__init__(f"$ {command}\n{printed}")
        self.printed = printed


@dataclass(frozen=True)
class Kubernetes:
    """kubectl and helm in one namespace; `started_s`: when the scenario began."""

    provider: Provider
    namespace: str
    started_s: float = field(default_factory=time.monotonic)

    def elsewhere(self, namespace: str) -> "Kubernetes":
        """The same cluster and scenario in another namespace."""
        return replace(self, namespace=namespace)

    @contextmanager
    def neighbour(self, suffix: str) -> Iterator["Kubernetes"]:
        """Another namespace for this scenario; it goes with the block, or before."""
        other = self.elsewhere(f"{self.namespace}-{suffix}")
        other.kubectl("create", "namespace", other.namespace)
        try:
            yield other
        finally:
            if not keeps_all():
                options = ["--ignore-not-found", "--wait=false"]
                other.kubectl("delete", "namespace", other.namespace, *options)

    def say(self, text: str) -> None:
        """One line of the log."""
        print(f"[{time.monotonic() - self.started_s:6.1f} s] {text}", flush=True)

    def kubectl(
        self, *arguments: str, given: str | None = None, timeout_s: float = COMMAND_S_MAX
    ) -> str:
        """What it prints; CommandError."""
        command = [*self.provider.command("kubectl"), "--namespace", self.namespace, *arguments]
        return self._run(command, shlex.join(["kubectl", *arguments]), given, timeout_s)

    def show(
        self, *arguments: str, given: str | None = None, timeout_s: float = COMMAND_S_MAX
    ) -> str:
        """`kubectl`, and both in the log."""
        return self._shown(
            shlex.join(["kubectl", *arguments]),
            lambda: self.kubectl(*arguments, given=given, timeout_s=timeout_s),
        )

    def helm(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """What it prints, both in the log; CommandError."""
        options = [*arguments, "--namespace", self.namespace]
        command, text = [*self.provider.command("helm"), *options], shlex.join(["helm", *options])
        return self._shown(text, lambda: self._run(command, text, None, timeout_s))

    def refused(self, *arguments: str, given: str | None = None) -> str:
        """Why kubectl fails, in the log too; AssertionError when it does not."""
        text = shlex.join(["kubectl", *arguments])
        self.say(f"$ {text}")
        try:
            printed = self.kubectl(*arguments, given=given)
        except CommandError as error:
            _print_indented(error.printed)
            return error.printed.strip()
        raise AssertionError(f"$ {text} was not refused:\n{printed}")

    def get(self, kind: str, name: str) -> Any:
        """One object; CommandError when there is none."""
        return json.loads(self.kubectl("get", kind, name, "--output", "json"))

    def find(self, kind: str, name: str) -> Any | None:
        """One object, None when there is none."""
        found = self.kubectl("get", kind, name, "--output", "json", "--ignore-not-found")
        return json.loads(found) if found else None

    def objects(self, kind: str, selector: str = "") -> list[Any]:
        """All of a kind in this namespace."""
        found = self.kubectl("get", kind, "--selector", selector, "--output", "json")
        items: list[Any] = json.loads(found)["items"]
        return items

    def apply(self, *documents: Document) -> None:
        """By `kubectl apply`, with the documents' kinds and names in the log."""
        self.say(f"$ kubectl apply -f -   # {', '.join(map(_title, documents))}")
        self.kubectl("apply", "--filename", "-", given=yaml.safe_dump_all(documents))

    def wait(self, resource: str, condition: str, *, timeout_s: float = WAIT_S_MAX) -> None:
        """`kubectl wait` for a condition (`Ready`, `Ready=False`), or what `--for` takes else.

        AssertionError with the object as it is when it does not come.
        """
        if not condition.startswith(("create", "delete", "jsonpath=")):
            condition = f"condition={condition}"
        arguments = ["wait", resource, f"--for={condition}", f"--timeout={timeout_s:.0f}s"]
        self.say(f"$ kubectl {shlex.join(arguments)}")
        try:
            self.kubectl(*arguments, timeout_s=timeout_s + 10)
        except CommandError as error:
            found = self.kubectl("get", resource, "--output", "yaml", "--ignore-not-found")
            raise AssertionError(f"{error}\n{found}\n{self.kubectl('get', 'pods')}") from error
        self.say(f"  {resource}: {condition}")

    def until(self, is_so: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S_MAX) -> None:
        """For what no `kubectl wait` can observe; a CommandError on the way counts as not yet."""
        deadline_s = time.monotonic() + timeout_s
        while not _holds(is_so):
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
            time.sleep(POLL_S)
        self.say(what)

    @contextmanager
    def running(self, *arguments: str) -> Iterator["Running"]:
        """A kubectl that runs while the block lasts, like a watch or a program in a pod."""
        command = [*self.provider.command("kubectl"), "--namespace", self.namespace, *arguments]
        with started(command, self.environment()) as running:
            yield running

    def environment(self) -> dict[str, str]:
        """Of commands that find the cluster."""
        return {**os.environ, **self.provider.environment}

    def _shown(self, text: str, run: Callable[[], str]) -> str:
        self.say(f"$ {text}")
        printed = run()
        _print_indented(printed)
        return printed

    def _run(self, command: list[str], text: str, given: str | None, timeout_s: float) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment(),
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(text, done.stdout + done.stderr)
        return done.stdout


@dataclass(frozen=True)
class Running:
    """A command and all that it prints; a file holds it, so that it never waits for a reader."""

    process: "subprocess.Popen[str]"
    output: Path  # read by a handle of its own: a shared one would move where kubectl writes

    def lines(self) -> list[str]:
        """Those that are whole so far."""
        return [line for line in self.output.read_text().splitlines(True) if line.endswith("\n")]

    def finish(self, timeout_s: float = 60.0) -> list[str]:
        """End its standard input, and wait until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout_s)
        return self.lines()


@contextmanager
def started(command: list[str], environment: Mapping[str, str]) -> Iterator[Running]:
    """A command that runs while the block lasts."""
    with (
        tempfile.NamedTemporaryFile() as output,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            yield Running(process, Path(output.name))
        finally:
            process.kill()


def condition_of(resource: Document, kind: str) -> Document:
    """One of its conditions; empty when it has none of that type."""
    conditions = resource.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _holds(is_so: Callable[[], bool]) -> bool:
    try:
        return is_so()
    except CommandError:
        return False


def _title(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def _print_indented(text: str) -> None:
    for line in text.rstrip().splitlines():
        print(f"           {line}", flush=True)
