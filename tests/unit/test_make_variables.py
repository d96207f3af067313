"""Variables on make's command line: each target takes those that it knows, and refuses others."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(30)

ROOT = Path(__file__).parents[2]


def make(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Print what would be done; nothing of a make that runs this test is inherited."""
    return subprocess.run(
        ["make", "--dry-run", *words],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (
            ["up", "CHOAS=1", "BROKER=3", "ONCE=1"],
            "make up has no variable BROKER CHOAS; "
            "it has BROKERS CHAOS FRESH INPUT KEY ONCE PORT REPEAT SPARK",
        ),
        (
            ["simulation", "SEDS=3"],
            "make simulation has no variable SEDS; it has FIRST SEED SEEDS SHRINK SPARK",
        ),
        (["fuzz", "SECOND=1"], "make fuzz has no variable SECOND; it has SECONDS SEED SPARK"),
        (
            ["bench", "STORE=1"],
            "make bench has no variable STORE; it has CATCH_UP_MIB CHANGES KILLS SPARK",
        ),
        (
            ["dist", "IMAGE=1"],
            "make dist has no variable IMAGE; it has DOCKER IMAGES SOURCE_DATE_EPOCH SPARK",
        ),
        (["check", "FIX=1"], "make check has no variable FIX; it has SPARK"),
        (["ONCE=1"], "make setup has no variable ONCE; it has SPARK"),
    ],
)
def test_a_variable_that_a_target_does_not_know_is_refused(words: list[str], refused: str) -> None:
    ended = make(*words)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.sub(r"^Makefile:\d+: ", "", ended.stderr) == f"*** {refused}.  Stop.\n"


def test_other_variables_of_the_environment_are_left_alone() -> None:
    assert make("up", ONCE="1", EDITOR="vi").returncode == 0
    assert make("bench", CHAOS="1").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["up", "ONCE=1", "FRESH=1", "SPARK=0", "REPEAT=2", "INPUT=my events.ndjson", "KEY=.field"],
        ["up", "BROKERS=3", "CHAOS=1"],
        ["up", "PORT=9350", "JAVA_HOME=/java", "TAILRACE_LOG_LEVEL=info"],
        ["simulation", "SEEDS=2", "FIRST=7"],
        ["simulation", "SEED=2", "SHRINK=1"],
        ["fuzz", "SECONDS=1", "SEED=7"],
        ["test", "SEEDS=2", "SECONDS=1"],
        ["check", "fuzz", "SECONDS=1"],
        ["dist", "IMAGES=1", "DOCKER=docker --context builder"],
        ["e2e", "SMOKE=1", "KUBECONFIG=config", "E2E_REGISTRY=registry"],
    ],
    ids=" ".join,
)
def test_every_variable_of_a_target_is_taken(words: list[str]) -> None:
    ended = make(*words)

    assert ended.returncode == 0, ended.stderr


def test_readme_lists_the_variables_of_make_up() -> None:
    refused = make("up", "CHOAS=1").stderr
    listed = re.findall(r"^\| `(.+?)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    names = {word.partition("=")[0] for row in listed for word in row.split() if "=" in word}

    assert f"it has {' '.join(sorted(names))}." in refused
