"""What the API server refuses, with the words that say what to do."""

from pathlib import Path

import pytest

from tests.e2e.kubernetes import CommandError, Kubernetes
from tests.e2e.provider import ROOT

GOLDEN = ROOT / "tests/golden/bad_specs.txt"
BAD_SPECS = GOLDEN.with_suffix("")


def test_bad_specs_are_refused_with_these_words(
    kubernetes: Kubernetes, pytestconfig: pytest.Config
) -> None:
    """Those named `live-…` are changes of what is in the folder `live`."""
    kubernetes.show("apply", "--filename", str(BAD_SPECS / "live"))
    paths = sorted(BAD_SPECS.glob("*.yaml"))
    reported = "\n".join(f"== {path.name}\n{refusal(kubernetes, path)}\n" for path in paths)
    if pytestconfig.getoption("rewrite"):
        GOLDEN.write_text(reported)

    kubernetes.say(f"{len(paths)} bad specs are refused:")
    print(reported)
    assert reported == GOLDEN.read_text()


def refusal(kubernetes: Kubernetes, path: Path) -> str:
    """What kubectl prints; AssertionError when the API server would take it."""
    try:
        kubernetes.kubectl("apply", "--dry-run=server", "--filename", "-", given=path.read_text())
    except CommandError as error:
        return "\n".join(line.rstrip() for line in error.printed.strip().splitlines())
    raise AssertionError(f"{path.name} was not refused")
