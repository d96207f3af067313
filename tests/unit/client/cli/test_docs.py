"""docs/cli.md is made from the verbs' tables; `--rewrite` writes it again."""

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

from tailrace.cli.lib.options import OUTPUT, URL
from tailrace.cli.lib.parser import Parameter, Verb
from tailrace.cli.main import ENVIRONMENT, SUMMARY, VERBS
from tailrace.protocol.requests import TopicSettings

COMMON = (OUTPUT, URL)
SETTINGS = {
    "topic create": get_type_hints(TopicSettings),
    "topic alter": get_type_hints(TopicSettings),
}
PAGE = Path(__file__).parents[4] / "docs" / "cli.md"


def page() -> str:
    """Markdown of all verbs."""
    return "\n".join(
        [
            "# Command line",
            "",
            f"{SUMMARY} Made from the code: `tailrace VERB --help` prints the same.",
            "",
            "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 ended by SIGTERM. "
            "A failure is one sentence on stderr that says what to do.",
            "",
            "| in many verbs | meaning |",
            "|---|---|",
            *map(row, COMMON),
            "",
            "| in the environment | meaning |",
            "|---|---|",
            *(f"| `${name}` | {meaning} |" for name, meaning in ENVIRONMENT.items()),
            "",
            "A `TAILRACE_…` variable that is neither one of these nor a [broker's](settings.md) or "
            "the operator's is refused with the nearest name.",
            "",
            *(line for name, verb in VERBS.items() for line in section(name, verb)),
        ]
    )


def section(name: str, verb: Verb) -> list[str]:
    described = inspect.getdoc(verb.run)
    assert described
    return [
        f"## tailrace {name}",
        described,
        "",
        *table([parameter for parameter in verb.parameters if parameter not in COMMON]),
        *common(verb),
        "```sh",
        *verb.examples,
        "```",
        "",
    ]


def table(parameters: list[Parameter]) -> list[str]:
    rows = list(map(row, parameters))
    return ["| parameter | meaning |", "|---|---|", *rows, ""] if rows else []


def common(verb: Verb) -> list[str]:
    names = [f"`{each.names[0]}`" for each in COMMON if each in verb.parameters]
    return [f"Takes {' and '.join(names)}.", ""] if names else []


def row(parameter: Parameter) -> str:
    names = parameter.option_names or [str(parameter.settings["metavar"])]
    metavar = parameter.settings.get("metavar", "") if parameter.is_option else ""
    reported = ", ".join(f"`{f'{name} {metavar}'.strip()}`" for name in names)
    return f"| {reported} | {parameter.help.replace('|', '&#124;')} |"


def test_the_page_is_what_the_command_does(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("rewrite"):
        PAGE.write_text(page())

    assert PAGE.read_text() == page()


@pytest.mark.parametrize("name", VERBS)
def test_a_verbs_table_fits_its_function(name: str) -> None:
    """What the parser makes of words are the function's parameters, settings of topics as one."""
    verb = VERBS[name]
    wanted = dict(inspect.signature(verb.run).parameters)
    settings = SETTINGS.get(name, ())
    assert bool(settings) == (wanted.pop("settings", None) is not None)
    made = [
        parameter.settings.get("dest")
        or max(parameter.names, key=len).lstrip("-").replace("-", "_")
        for parameter in verb.parameters
    ]

    assert [each for each in made if each not in settings] == list(wanted)
    assert {each for each in made if each not in wanted} == set(settings)
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in wanted.values())
