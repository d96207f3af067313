"""Tables, JSON and YAML: one list of documents in each of them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.consuming.records import columns
from tailrace.cli.lib.output import Column, as_table, member, show, show_pages, yaml_lines

COLUMNS = [member("NAME", "name"), member("PARTS", "parts")]
LONG = {"name": "long-name", "parts": [1, 2]}
SHORT = {"name": "a", "parts": []}

leaves = st.none() | st.booleans() | st.integers() | st.text()
documents = st.recursive(
    leaves | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def yaml_of(value: object) -> str:
    return "\n".join(yaml_lines(value))


def read_scalar(text: str) -> object:
    """The text behind "name: " or "- "."""
    return text if re.fullmatch(r"[A-Za-z][\w./-]*", text) and not is_word(text) else read(text)


def is_word(text: str) -> bool:
    return text in ("true", "false", "null")


def read(text: str) -> object:
    return json.loads(text)


def test_a_table_aligns_its_columns() -> None:
    assert as_table([SHORT, LONG], COLUMNS).splitlines() == [
        "NAME       PARTS",
        "a          -",
        "long-name  1,2",
    ]
    assert as_table([], COLUMNS) == "NAME  PARTS"


def test_a_table_of_pages_has_its_titles_once_and_grows_with_what_comes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_pages("table", [[], [SHORT], [], [LONG], [SHORT]], COLUMNS)

    assert capsys.readouterr().out.splitlines() == [
        "NAME  PARTS",
        "a     -",
        "long-name  1,2",
        "a          -",
    ]


@pytest.mark.parametrize("pages", [[], [[]], [[SHORT, LONG]], [[SHORT], [], [LONG]]])
def test_pages_in_json_are_one_array(
    capsys: pytest.CaptureFixture[str], pages: list[list[object]]
) -> None:
    show_pages("json", pages, COLUMNS)

    assert json.loads(capsys.readouterr().out) == [each for page in pages for each in page]


def test_pages_in_yaml_are_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_pages("yaml", [[SHORT], [], [LONG]], COLUMNS)

    assert capsys.readouterr().out.rstrip("\n") == yaml_of([SHORT, LONG])


def test_no_documents_in_yaml_are_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_pages("yaml", [], COLUMNS)
    show_pages("yaml", [[], []], COLUMNS)

    assert capsys.readouterr().out == "[]\n[]\n"


@pytest.mark.parametrize(
    ("output", "text"),
    [("table", "reported\n"), ("json", '{\n  "a": "é"\n}\n'), ("yaml", 'a: "é"\n')],
)
def test_one_document_is_reported_in_each_form(
    capsys: pytest.CaptureFixture[str], output: str, text: str
) -> None:
    show(output, {"a": "é"}, "reported")

    assert capsys.readouterr().out == text


def test_cells_are_what_people_read() -> None:
    cell = Column("X", member("X", "x").cell)

    assert [cell.cell({"x": value}) for value in (None, [], True, False, 7, "a", [1, 2])] == [
        "-",
        "-",
        "yes",
        "no",
        "7",
        "a",
        "1,2",
    ]


def test_yaml_is_in_block_style() -> None:
    document: dict[str, object] = {
        "name": "flights",
        "partitions": [{"partition": 0, "isr": [0, 1], "parents": []}, {"partition": 1}],
        "matrix": [[1, 2], []],
        "empty": {},
        "key": None,
    }

    assert yaml_of(document).splitlines() == [
        "name: flights",
        "partitions:",
        "- partition: 0",
        "  isr:",
        "  - 0",
        "  - 1",
        "  parents: []",
        "- partition: 1",
        "matrix:",
        "- - 1",
        "  - 2",
        "- []",
        "empty: {}",
        "key: null",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("flights", "flights"),
        ("a.b/c-d_e", "a.b/c-d_e"),
        ("", '""'),
        ("no", '"no"'),
        ("Y", '"Y"'),
        ("NULL", '"NULL"'),
        ("1e3", '"1e3"'),
        ("2026-11-21", '"2026-11-21"'),
        ("a: b", '"a: b"'),
        ("a\n", '"a\\n"'),
        ("\x85\u2028\ud800", '"\\u0085\\u2028\\ud800"'),
        (1e-07, "1.0e-07"),
        (1.5e300, "1.5e+300"),
        (2.0, "2.0"),
        (True, "true"),
    ],
)
def test_a_leaf_is_written_so_that_every_reader_takes_it_for_the_same(
    value: object, text: str
) -> None:
    assert yaml_of(value) == text


@given(st.dictionaries(st.text(max_size=5), leaves, min_size=1))
def test_a_flat_document_in_yaml_reads_back(document: dict[str, object]) -> None:
    read_back = {}
    for line in yaml_lines(document):
        name, value = split_entry(line)
        read_back[read_scalar(name)] = read_scalar(value)

    assert read_back == document


def split_entry(line: str) -> tuple[str, str]:
    found = re.fullmatch(r'("(?:[^"\\]|\\.)*"|[\w./-]+): (.*)', line)
    assert found, line
    return found[1], found[2]


@given(documents)
def test_no_line_of_yaml_has_what_yaml_does_not_print(document: object) -> None:
    for line in yaml_lines(document):
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]", line)


def test_what_a_terminal_would_act_on_is_shown_and_not_sent() -> None:
    *_, key, value, _headers = columns()
    record = {"key": "\x1b[2J", "value": {"a": "\x9b"}}

    assert key.cell(record) == '"\\u001b[2J"'
    assert value.cell(record) == '{"a": "\\u009b"}'
    assert value.cell({"value": {"a": ["é"]}}) == '{"a":["é"]}'
    assert key.cell({"key": None}) == "-"
