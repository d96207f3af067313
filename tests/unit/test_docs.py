"""What the documents say, checked against the code; what is made from code; the page `/docs`."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace_broker.net.api.openapi import openapi
from tailrace_broker.net.api.routes import ROUTES
from tests.support.docs.console import is_as_shown, masked, programs_of, rewritten, shown
from tests.support.docs.reference import api_page, settings_page

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGE = (files("tailrace_broker.net.api") / "docs.html").read_text()
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What these show is run by other tests: the examples of each verb, by those of the command line.
OTHER_BLOCKS = {"cli.md"}
# Code that makes elements or programs out of text: what a topic is called could become one.
UNSAFE_CODE = r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|write(?:ln)?\(|eval|Function|srcdoc)\b"
DOCUMENT = """\
Text.

```console
$ first
$ second \\
>   word
one
two
```

```python
print(1)
```

```text
1
```

    $ an indented block is only shown
"""


def openapi_document() -> dict[str, Any]:
    """As a broker sends it."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi(ROUTES)))
    return document


def anchors_of(document: str) -> set[str]:
    """The names of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- documents ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "page"),
    [("api.md", lambda: api_page(openapi_document())), ("settings.md", settings_page)],
)
def test_a_reference_says_what_the_code_says(
    pytestconfig: pytest.Config, name: str, page: Callable[[], str]
) -> None:
    path = ROOT / "docs" / name
    if pytestconfig.getoption("rewrite"):
        path.write_text(page())

    assert path.read_text() == page(), "pytest tests/unit/test_docs.py --rewrite writes it again"


def test_links_lead_somewhere() -> None:
    broken = []
    links = [(path, target) for path in DOCUMENTS for target in LINK.findall(path.read_text())]
    for path, target in links:
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if "://" in target:
            continue
        if not file.exists() or (anchor and anchor not in anchors_of(file.read_text())):
            broken.append((path.name, target))

    assert broken == []


def test_no_document_installs_from_an_index_which_has_no_tailrace_yet() -> None:
    """Until the first release: from a clone, or from a wheel of `make dist`."""
    install = re.compile(r"pip install '?tailrace(?:\[\w.*|$)", re.MULTILINE)

    assert [path.name for path in DOCUMENTS if install.search(path.read_text())] == []


@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if path.name not in OTHER_BLOCKS],
    ids=lambda path: path.name,
)
def test_commands_are_in_blocks_that_a_test_runs(path: Path) -> None:
    text = path.read_text()
    programs = programs_of(text)
    commands = [program for program in programs if program.language == "console"]

    assert re.findall(r"^```(?:sh|bash|shell|zsh)\b.*", text, re.MULTILINE) == []
    assert len(re.findall(r"^\s*\$ ", text, re.MULTILINE)) == len(commands)


# --- how documents are read -----------------------------------------------------------------------


def test_programs_are_found_with_what_they_print() -> None:
    first, second, block = programs_of(DOCUMENT)

    assert (first.text, shown(DOCUMENT, first), first.is_shown) == ("first", "", True)
    assert (second.text, shown(DOCUMENT, second)) == ("second \\\n  word", "one\ntwo")
    assert (block.text, shown(DOCUMENT, block)) == ("print(1)", "1")
    assert [each.line for each in (first, second, block)] == [3, 4, 11]


def test_a_python_block_without_a_text_block_may_print_anything() -> None:
    (block,) = programs_of("```python\npass\n```\nThis is not it:\n```text\n1\n```\n")

    assert (block.text, block.is_shown) == ("pass", False)


@pytest.mark.parametrize("text", ["```console\n$ a\n", "```console\nno command\n```\n"])
def test_a_block_that_is_not_one_is_an_error(text: str) -> None:
    with pytest.raises(AssertionError):
        programs_of(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        ("", "\n"),
        ("a\nb", "a\nb\n"),
        ("a\n…", "a\nb\nc\n"),
        ("a\n…", "a\n"),
        ("…\nz", "a\nb\nz\n"),
        ("[1,…", "[1,2,3]\n"),
        ("✓ 3 events, 2.0 MiB, 0.3 s", "✓ 3 events, 913 bytes, 12.1 s\n"),
        ("t: ready in 42 ms   1,000/s", "t: ready in 7 ms   12/s"),
        ("A     SIZE\na     1 KiB", "A  SIZE\na  10 MiB"),
        (
            '{"upSeconds":3,"at":"2026-11-21T10:09:23.1Z"}',
            '{"upSeconds":4,"at":"2027-01-01T00:00:00Z"}',
        ),
        ("id 0f334c55-184e-4673-bf87-dcc66fd827a3", "id 11111111-2222-3333-4444-555555555555"),
        ("38M of 50G  yes  7f3a         2m", "1.2G of 3T  yes  00c1         12s"),
        ("(.*)", "(.*)"),
    ],
)
def test_what_differs_from_run_to_run_is_no_difference(text: str, printed: str) -> None:
    assert is_as_shown(text, printed)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "a"),
        ("a", ""),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a\n…", "b\nc"),
        ("✓ 3 events", "✓ 4 events"),
        ('{"offset":1}', '{"offset":2}'),
        ("a.c", "abc"),
        ("x…", "x\ny"),
    ],
)
def test_all_else_is_a_difference(text: str, printed: str) -> None:
    assert not is_as_shown(text, printed)


def test_masks_leave_words_alone() -> None:
    text = "20,000 events in 4 partitions of 2 topics, 3 sealed, at offset 1702"

    assert masked(text) == text


def test_outputs_are_written_into_the_document() -> None:
    first, second, block = programs_of(DOCUMENT)

    again = rewritten(DOCUMENT, {first: "new\n", second: "\n", block: "2\n3\n"})

    assert [shown(again, program) for program in programs_of(again)] == ["new", "", "2\n3"]
    assert again.replace("new\n", "").count("\n") == DOCUMENT.count("\n") - 1


def test_a_shortened_output_stays_as_short() -> None:
    document = "```console\n$ list\na\nb\n…\n```\n"
    (program,) = programs_of(document)

    assert rewritten(document, {program: "c\nd\ne\nf\n"}) == "```console\n$ list\nc\nd\n…\n```\n"


# --- the page -------------------------------------------------------------------------------------


class _Elements(HTMLParser):
    """All attributes of a page, with their element's name."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]


def test_the_page_asks_for_nothing_outside() -> None:
    elements = _Elements()
    elements.feed(PAGE)
    links = {value for _, name, value in elements.attributes if name in ("src", "href", "srcset")}

    assert links == {"data:,", "#main", "/v1/openapi.json"}
    assert re.findall(r"https?:|(?<!:)//\w|url\(|@import", PAGE) == []


def test_the_page_makes_no_elements_from_text() -> None:
    assert re.findall(UNSAFE_CODE, PAGE) == []


def test_the_page_has_names_for_all_that_is_not_text() -> None:
    elements = _Elements()
    elements.feed(PAGE)

    assert ("html", "lang", "en") in elements.attributes
    assert ("nav", "aria-label", "Groups of routes") in elements.attributes
    assert [name for _, name, _ in elements.attributes if name.startswith("on")] == []
