"""What may follow on a command line."""

import pytest

from tailrace.cli.completion import live_topics, words_after
from tailrace.cli.main import VERBS
from tests.fixtures import free_port_base


def after(line: str, *, asked: list[str | None] | None = None) -> list[str]:
    """The candidates, with a broker that has three topics; `asked` gets the URLs."""

    def topics(url: str | None) -> list[str]:
        if asked is not None:
            asked.append(url)
        return ["flights", "flows", "orders"]

    return words_after(line, VERBS, topics)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tailrace to", ["topic"]),
        ("tailrace co", ["consume", "completion"]),
        ("tailrace topic ", ["create", "list", "describe", "alter", "delete", "restore"]),
        ("tailrace topic de", ["describe", "delete"]),
        ("tailrace topic describe ", ["flights", "flows", "orders"]),
        ("tailrace consume fl", ["flights", "flows"]),
        ("tailrace consume flights ", []),
        ("tailrace consume flights --pa", ["--partition"]),
        ("tailrace consume flights --fo", ["--follow"]),
        ("tailrace consume --max 10 fl", ["flights", "flows"]),
        ("tailrace consume --max fl", []),
        ("tailrace consume --follow o", ["orders"]),
        ("tailrace topic alter --n", ["--no-json-check"]),
        ("tailrace topic list -o ", ["table", "json", "yaml"]),
        ("tailrace topic list --output y", ["yaml"]),
        ("tailrace produce orders -f ", []),
        ("tailrace dump ", []),
        ("tailrace dump --rec", ["--records"]),
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


@pytest.mark.parametrize("url", [f"http://127.0.0.1:{free_port_base()}", "nonsense"])
def test_without_a_broker_there_are_no_topics(url: str) -> None:
    assert live_topics(url) == []
