"""Brokers by name: `tailrace context`, and which broker a verb then talks to."""

import json
import stat
import sys
from pathlib import Path

import pytest

from tailrace.cli.lib.context_file import Context, Contexts, contexts_path, load, save
from tailrace.cli.lib.options import Access, target
from tailrace.cli.main import main
from tailrace.errors import TailraceError
from tests.support.broker.fixtures import free_port_base

PROD = Context("https://prod.example:9250", "secret", "/etc/ca.pem")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where contexts are kept; nothing else is set."""
    for name in ("TAILRACE_URL", "TAILRACE_TOKEN", "TAILRACE_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "tailrace"


class Command:
    """Runs `tailrace context`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, words: str) -> tuple[int, str]:
        """Exit status, and what is reported on either stream."""
        self._monkeypatch.setattr(sys, "argv", ["tailrace", *words.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, "".join(self._capsys.readouterr())


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_contexts_are_kept_for_their_owner_alone(folder: Path) -> None:
    contexts = Contexts("prod", {"prod": PROD, "local": Context("http://127.0.0.1:9250")})
    save(Contexts())
    save(contexts)

    assert load() == contexts
    assert contexts.used == PROD
    assert stat.S_IMODE((folder / "contexts.json").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["contexts.json"]


def test_a_file_that_others_could_read_is_theirs_no_longer(folder: Path) -> None:
    folder.mkdir()
    (folder / "contexts.json").write_text('{"contexts": {}}')
    (folder / "contexts.json").chmod(0o644)
    save(Contexts())

    assert stat.S_IMODE((folder / "contexts.json").stat().st_mode) == 0o600


def test_a_link_to_the_file_stays_one(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (folder / "contexts.json").symlink_to(tmp_path / "mine.json")
    save(Contexts(None, {"prod": PROD}))

    assert (folder / "contexts.json").is_symlink()
    assert load().by_name == {"prod": PROD}


def test_without_a_file_there_are_no_contexts() -> None:
    assert load() == Contexts()
    assert load().used is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"contexts": []}',
        '{"contexts": {"a": {}}}',
        '{"contexts": {"a": {"url": 1}}}',
        '{"contexts": {"a": {"url": "http://a", "token": 1}}}',
        '{"current": "b", "contexts": {"a": {"url": "http://a"}}}',
    ],
)
def test_a_file_that_does_not_read_is_named(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "contexts.json").write_text(content)

    with pytest.raises(TailraceError, match=r"contexts\.json is not a file of contexts: repair it"):
        load()


def test_a_relative_configuration_folder_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert contexts_path() == tmp_path / ".config" / "tailrace" / "contexts.json"


# --- which broker ---------------------------------------------------------------------------------


def test_the_current_context_is_used_when_no_url_is_given() -> None:
    save(Contexts("prod", {"prod": PROD}))
    found = target(None)

    assert (found.url, found.token, found.ca_file) == (PROD.url, PROD.token, PROD.ca_file)
    assert set(found.origins.values()) == {'context "prod"'}


@pytest.mark.parametrize("is_option", [True, False])
def test_a_url_that_is_given_goes_first_and_gets_no_contexts_token(
    monkeypatch: pytest.MonkeyPatch, is_option: bool
) -> None:
    save(Contexts("prod", {"prod": PROD}))
    if not is_option:
        monkeypatch.setenv("TAILRACE_URL", "http://other:1")
    found = target("http://other:1" if is_option else None)

    assert found[:3] == ("http://other:1", None, None)
    assert found.origins["url"] == ("--url" if is_option else "TAILRACE_URL")


def test_the_environments_token_and_ca_go_before_the_contexts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(Contexts("prod", {"prod": PROD}))
    monkeypatch.setenv("TAILRACE_TOKEN", "mine")
    monkeypatch.setenv("TAILRACE_CA_FILE", "/my/ca.pem")

    assert target(None)[:3] == (PROD.url, "mine", "/my/ca.pem")


def test_without_any_it_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_URL", "")
    save(Contexts(None, {"prod": PROD}))

    assert isinstance(target(None), Access)
    assert target(None)[:3] == ("http://127.0.0.1:9250", None, None)


def test_in_a_brokers_environment_its_secret_is_the_token_for_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAILRACE_RING_SECRET", "of the ring")

    assert target(None).token == "of the ring"
    assert target("http://other:1").token is None

    monkeypatch.setenv("TAILRACE_TOKEN", "mine")
    assert target(None).token == "mine"


def test_an_error_names_the_context_whose_url_does_not_answer(command: Command) -> None:
    url = f"http://127.0.0.1:{free_port_base()}"
    command(f"context set prod {url}")
    exit_code, reported = command("topic list")

    assert exit_code == 1
    assert reported.startswith(f"error: no broker answers at {url} ")
    assert reported.endswith('That is the URL of context "prod"\n')
    assert "context" not in command(f"topic list --url http://127.0.0.1:{free_port_base()}")[1]


# --- the verbs ------------------------------------------------------------------------------------


def test_the_first_context_is_used_and_others_when_they_are_chosen(command: Command) -> None:
    assert command("context set a http://a:1") == (0, "✓ a: http://a:1\n")
    assert command("context set b http://b:1") == (
        0,
        "✓ b: http://b:1; use it: tailrace context use b\n",
    )
    assert load().current == "a"
    assert command("context use b") == (0, "✓ b: http://b:1\n")
    assert load().current == "b"


def test_a_token_is_kept_and_never_shown(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    for line in (
        f"context set a http://a:1 --token-file {tmp_path}/token -o json",
        "context list",
        "context list -o json",
        "context use a -o yaml",
        "context delete a -o json",
    ):
        if line.startswith("context delete"):
            assert load().by_name["a"].token == "secret"
        exit_code, reported = command(line)
        assert exit_code == 0
        assert "secret" not in reported


def test_contexts_are_listed_by_name(command: Command) -> None:
    save(Contexts("prod", {"prod": PROD, "local": Context("http://127.0.0.1:9250")}))
    rows = [line.split() for line in command("context list")[1].splitlines()]

    assert rows == [
        ["CURRENT", "CONTEXT", "URL", "TOKEN", "CA", "FILE"],
        ["local", "http://127.0.0.1:9250", "no", "-"],
        ["*", "prod", PROD.url, "yes", PROD.ca_file],
    ]
    assert json.loads(command("context list -o json")[1])[1] == {
        "context": "prod",
        "url": PROD.url,
        "hasToken": True,
        "caFile": PROD.ca_file,
        "current": True,
    }


def test_deleting_the_current_one_leaves_none(command: Command) -> None:
    save(Contexts("prod", {"prod": PROD, "local": Context("http://127.0.0.1:9250")}))
    reported = command("context delete prod")[1]

    assert reported == "✓ prod: deleted, and no other is used now: tailrace context use\n"
    assert (load().current, list(load().by_name)) == (None, ["local"])


@pytest.mark.parametrize("verb", ["use", "delete"])
def test_an_unknown_name_is_reported_with_what_may_be_meant(command: Command, verb: str) -> None:
    save(Contexts("prod", {"prod": PROD}))

    assert command(f"context {verb} prdo") == (
        1,
        'error: there is no context "prdo"; did you mean prod. '
        "Those that exist: tailrace context list\n",
    )


def test_a_set_url_of_the_environment_is_notified_of(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Contexts(None, {"prod": PROD}))
    monkeypatch.setenv("TAILRACE_URL", "http://other:1")

    assert "$TAILRACE_URL is set, and goes before it" in command("context use prod")[1]


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nb", b"\xff"])
def test_a_token_is_one_line(command: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    exit_code, reported = command(f"context set a http://a:1 --token-file {tmp_path}/token")

    assert exit_code == 2
    assert reported.startswith("error: --token-file: it is to hold one line of visible ASCII")
    assert load() == Contexts()
