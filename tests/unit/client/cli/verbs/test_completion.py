"""What may follow on a command line."""

from pathlib import Path

import pytest

from tailrace.cli.lib.context_file import Context, Contexts, save
from tailrace.cli.main import VERBS
from tailrace.cli.verbs.completion import live_names, words_after
from tests.support.broker.fixtures import free_port_base

NAMES = {
    "topic": ["flights", "flows", "orders"],
    "group": ["billing", "default"],
    "context": ["prod", "staging"],
}


def after(line: str, *, asked: list[str | None] | None = None) -> list[str]:
    """The candidates, with a broker that has three topics; `asked` gets the URLs."""

    def names(kind: str, url: str | None) -> list[str]:
        if asked is not None:
            asked.append(url)
        return NAMES[kind]

    return words_after(line, VERBS, names)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tailrace to", ["topic"]),
        ("tailrace co", ["consume", "context", "completion"]),
        (
            "tailrace topic ",
            ["create", "list", "describe", "alter", "delete", "restore", "accept-loss"],
        ),
        ("tailrace topic de", ["describe", "delete"]),
        ("tailrace topic describe ", ["flights", "flows", "orders"]),
        ("tailrace consume fl", ["flights", "flows"]),
        ("tailrace consume flights ", ["flights", "flows", "orders"]),
        ("tailrace topic describe flights ", []),
        ("tailrace --url http://a:1 topic describe fl", ["flights", "flows"]),
        ("tailrace --url ", []),
        ("tailrace -o ", ["table", "json", "yaml"]),
        ("tailrace --url http://a:1 -o json topic describe fl", ["flights", "flows"]),
        ("tailrace consume flights --pa", ["--partition"]),
        ("tailrace consume flights --fol", ["--follow"]),
        ("tailrace consume --max 10 fl", ["flights", "flows"]),
        ("tailrace consume --max fl", []),
        ("tailrace consume --follow o", ["orders"]),
        ("tailrace topic alter --n", ["--no-json-check"]),
        ("tailrace topic list -o ", ["table", "json", "yaml"]),
        ("tailrace topic list --output y", ["yaml"]),
        ("tailrace produce orders -f ", []),
        ("tailrace dump ", []),
        ("tailrace dump --rec", ["--records"]),
        ("tailrace group describe ", ["billing", "default"]),
        ("tailrace group reset billing --topic f", ["flights", "flows"]),
        ("tailrace group reset --topic flows --topic f", ["flights", "flows"]),
        ("tailrace consume flights --group b", ["billing"]),
        ("tailrace context use ", ["prod", "staging"]),
        ("tailrace context set local ", []),
        ("tailrace bench --durability w", ["written"]),
        ("tailrace completion z", ["zsh"]),
        ("tailrace status --h", ["--help"]),
        ("tailrace nosuch ", []),
        ("tailrace nosuch --", []),
    ],
)
def test_words_are_those_that_may_follow(line: str, words: list[str]) -> None:
    assert after(line) == words


def test_alone_it_is_followed_by_a_verb() -> None:
    firsts = {name.partition(" ")[0] for name in VERBS}

    assert set(after("tailrace ")) == firsts
    assert len(after("tailrace ")) == len(firsts)


def test_topics_are_those_of_the_url_on_the_line() -> None:
    asked: list[str | None] = []
    after("tailrace consume ", asked=asked)
    after("tailrace consume --url http://a:1 ", asked=asked)
    after("tailrace consume --max 1", asked=asked)

    assert asked == [None, "http://a:1"]


def test_contexts_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = live_names("context", None)
    save(Contexts("b", {"b": Context("http://b:1"), "a": Context("http://a:1")}))

    assert (before, live_names("context", None)) == ([], ["a", "b"])


@pytest.mark.parametrize(
    "url", [f"http://127.0.0.1:{free_port_base()}", "nonsense"], ids=["nobody there", "no URL"]
)
def test_without_a_broker_there_are_no_topics(url: str) -> None:
    assert live_names("topic", url) == []
    assert live_names("group", url) == []
