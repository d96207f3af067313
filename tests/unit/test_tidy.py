"""The house rules that no linter knows."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(30)  # all sources are read, and parsed

ROOT = Path(__file__).parents[2]
SOURCE_FOLDERS = ["broker", "client", "operator", "examples", "benchmarks", "tools"]
OTHER_FOLDERS = [".ci", ".github", "docs", "helm", "tests"]
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
TEXT_SUFFIXES = {"", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
# A folder of somebody's machine: right there, wrong everywhere else. Not the path part of a URL.
MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:home|root|Users|work)/\w")


# Words that only this project would understand, and the standard term.
PLAIN_WORDS = {
    r"doors?": "listener, port",
    r"carr(?:y|ies|ied|ying) out": "apply, execute",
    r"signs? of life": "heartbeat",
    r"anew": "again",
    r"mend(?:s|ed|ing)?": "repair, correct",
    r"genesis": "bootstrap, initial state",
    r"weather": "network conditions",
    r"chronicles?|tales?": "log, run",
}


def files_of(*folders: str) -> Iterator[Path]:
    """The files of these folders of the project, without what tools leave behind."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


SOURCES = {path: path.read_text() for path in files_of(*SOURCE_FOLDERS) if path.suffix == ".py"}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """The sources, parsed; by a fixture, since every worker collects but few run these tests."""
    return {path: ast.parse(text) for path, text in SOURCES.items()}


def named(path: Path, line: int) -> str:
    """How an editor opens the place."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_no_function_is_longer_than_70_lines(trees: dict[Path, ast.Module]) -> None:
    functions = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert [
        f"{named(path, node.lineno)} {node.name}"
        for path, node in functions
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ] == []


# Both clients have these.
PAIRED_CLASSES = {"Client", "Consumer", "Producer", "Reading"}


def test_no_two_classes_of_the_client_have_one_name(trees: dict[Path, ast.Module]) -> None:
    names = Counter(
        node.name
        for path, tree in trees.items()
        if path.is_relative_to(ROOT / "client")
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name not in PAIRED_CLASSES
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_no_file_is_longer_than_600_lines() -> None:
    assert [
        named(path, FILE_LINES_MAX)
        for path, text in SOURCES.items()
        if text.count("\n") > FILE_LINES_MAX
    ] == []


def test_every_module_says_what_it_is(trees: dict[Path, ast.Module]) -> None:
    assert [named(path, 1) for path, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_the_broker_logs_and_does_not_print(trees: dict[Path, ast.Module]) -> None:
    assert [
        named(path, node.lineno)
        for path, tree in trees.items()
        if path.is_relative_to(ROOT / "broker")
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "print"
    ] == []


def test_the_operator_folder_is_no_package() -> None:
    """As a package `operator` would hide the standard module of that name."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert [
        named(path, number)
        for path in (*ROOT.glob("*"), *files_of(*SOURCE_FOLDERS, *OTHER_FOLDERS))
        if path.is_file() and path.suffix in TEXT_SUFFIXES
        if not path.name.startswith(".coverage")  # measurements of this machine; not in git
        # A file of the fuzzers' corpus may be anything.
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ] == []


def test_texts_use_standard_terms() -> None:
    this = Path(__file__)
    folders = [*SOURCE_FOLDERS, *OTHER_FOLDERS]
    texts = [path for path in files_of(*folders) if path.suffix in {".md", ".py"}]
    words = {re.compile(rf"\b(?:{word})\b", re.I): term for word, term in PLAIN_WORDS.items()}

    assert [
        f"{named(path, number)}: {found[0]} -> {term}"
        for path in [*texts, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        if path != this and "decisions" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word, term in words.items()
        if (found := word.search(line))
    ] == []
