"""A command that a text names goes to the broker of the command that printed it."""

import pytest

from tailrace.cli.lib.remedies import with_url
from tailrace.cli.main import VERBS

URL = "localhost:9350"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("Those that do: tailrace topic list", "Those that do: tailrace --url URL topic list"),
        (
            "lost: tailrace topic accept-loss t 1, tailrace topic accept-loss t 2",
            "lost: tailrace --url URL topic accept-loss t 1, "
            "tailrace --url URL topic accept-loss t 2",
        ),
        ("the rest:\n  tailrace produce t --url URL --resume T", None),
        ("See: tailrace produce --help", None),
        ("Start one: tailrace dev; or name another with --url or TAILRACE_URL", None),
        ("one of pytailrace topic", None),
    ],
)
def test_a_command_repeats_the_url_that_was_given(text: str, reported: str | None) -> None:
    text, reported = text.replace("URL", URL), (reported or text).replace("URL", URL)

    assert with_url(text, URL) == reported
    assert with_url(text, None) == text


def test_a_url_is_quoted_for_the_shell() -> None:
    assert with_url("tailrace status", "a\\1 b") == "tailrace --url 'a\\1 b' status"


def test_every_verb_that_has_the_option_is_known() -> None:
    for name, verb in VERBS.items():
        has_url = any("--url" in parameter.names for parameter in verb.parameters)

        assert (with_url(f"tailrace {name}", URL) != f"tailrace {name}") == has_url, name
