"""What `import tailrace` offers, and what it costs."""

import subprocess
import sys

import pytest

import tailrace


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAILRACE_URL", "TAILRACE_TOKEN", "TAILRACE_CA_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", tailrace.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(tailrace, name) is not None


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match='"tailrace" has no attribute "nosuch"'):
        _ = tailrace.nosuch


def test_importing_it_loads_nothing_of_it() -> None:
    code = "import sys, tailrace; print(sorted(n for n in sys.modules if n[:9] == 'tailrace.'))"

    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout

    assert printed == "[]\n"


def test_the_url_is_given_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tailrace.connect().url == "http://127.0.0.1:9250"
    monkeypatch.setenv("TAILRACE_URL", "http://broker:1")

    assert tailrace.connect().url == "http://broker:1"
    assert tailrace.connect("http://other:2").url == "http://other:2"


@pytest.mark.parametrize(
    ("variable", "value", "reported"),
    [("TAILRACE_TOKEN", "a b", "token"), ("TAILRACE_CA_FILE", "/nosuch", "/nosuch")],
)
def test_proof_and_trust_are_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reported: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ValueError, match=reported):
        tailrace.connect("https://broker:1")


def test_what_is_given_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_URL", "no URL")
    monkeypatch.setenv("TAILRACE_TOKEN", "no token")

    assert tailrace.connect("http://broker:1", token="t").url == "http://broker:1"
