"""The command line before a broker answers: help, wrong usage, and no broker there."""

import re
import sys

import pytest

from tailrace.cli.main import main
from tests.fixtures import free_port_base


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_URL", raising=False)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `tailrace` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def assert_failed(capsys: pytest.CaptureFixture[str], error: str) -> None:
    """One sentence on stderr that matches, nothing on stdout."""
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(f"error: .*{error}.*\n", output.err), output.err


@pytest.mark.parametrize("verb", ["dev", "topic create", "topic list", "produce", "consume"])
def test_each_verb_has_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert run(monkeypatch, *verb.split(), "--help") == 0

    assert f"Example:\n    tailrace {verb}" in capsys.readouterr().out


def test_the_command_alone_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0

    assert "Example:" in capsys.readouterr().out


def test_the_version_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0

    assert re.fullmatch(r"tailrace \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("produce t --nosuch", "No such option: --nosuch.* See: tailrace produce --help"),
        ("nosuch", "No such command 'nosuch'. See: tailrace --help"),
        ("topic", "Missing command. See: tailrace topic --help"),
        ("produce", "Missing argument 'TOPIC'. See: tailrace produce --help"),
        ("produce t --key origin", '"origin" is not a field path, like .customer'),
        ("consume t --from soon", '"soon" is not earliest, latest or an offset'),
        ("consume t --max -1", "Invalid value for '--max'"),
        ("consume t --url localhost", '"localhost" is not a broker\'s URL'),
        ("dev --brokers 3", "this version runs rings of one broker"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    error: str,
) -> None:
    assert run(monkeypatch, *arguments.split()) == 2

    assert_failed(capsys, error)


@pytest.mark.parametrize("verb", ["topic list", "topic create t", "consume t"])
def test_without_a_broker_a_verb_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    url = f"http://127.0.0.1:{free_port_base()}"

    assert run(monkeypatch, *verb.split(), "--url", url) == 1

    assert_failed(capsys, f"no broker answers at {url} .*tailrace dev")


def test_a_file_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "produce", "t", "-f", "nosuch.ndjson") == 1

    assert_failed(capsys, "nosuch.ndjson: No such file or directory")
