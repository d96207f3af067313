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
MORE_PLAIN_WORDS = {
    r"tells?|telling|told": "report, notify, send, log, distinguish",
    r"agreed": "committed, replicated",
    r"founding": "bootstrap",
    r"stor(?:y|ies)": "scenario, run, log",
    r"facts?": "group event",
    r"patience": "delivery timeout",
    r"plant(?:s|ed|ing)?": "inject, mutation",
    r"by (?:it|them)sel(?:f|ves)": "automatically; separately; exits",
    r"put(?:s|ting)? right|right again": "repair, correct",
    r"looks? (?:at|again|on|through)|a look": "read, inspect, check, reconcile pass",
    r"stands? (?:in|for|behind|before|there|still)|what stands": "is in, means, follows",
    r"so long(?! as| ago)": "this long",
    r"(?:is|are) another(?:'s)?": "differs, belongs to a different one",
    r"for who": "for whoever, for the one that",
}
# The words above, where they are a name of the protocol or of a public API, or of Python's.
NAMES = re.compile(
    r'notagreed\w*|not.agreed|founding-under-way|"founding"|`founding`|\b_?patience_s\b|plan\.facts|_raw\.tell'
)
# The next change to a file of these replaces its words, and takes its folder out of this list.
LATER_FOLDERS = (
    "broker/tailrace_broker/core/log",
    "broker/tailrace_broker/core/node",
    "broker/tailrace_broker/core/replication",
    "broker/tailrace_broker/core/ring",
    "broker/tailrace_broker/storage/journal",
    "broker/tailrace_broker/storage/log",
    "broker/tailrace_broker/storage/segments",
    "broker/tailrace_broker/topics",
    "tests/simulation",
    "tests/support/log",
    "tests/unit/broker/core/log",
    "tests/unit/broker/core/node",
    "tests/unit/broker/core/replication",
    "tests/unit/broker/core/ring",
    "tests/unit/broker/storage/journal",
    "tests/unit/broker/storage/log",
    "tests/unit/broker/storage/segments",
    "tests/unit/broker/topics",
)
TEXTS_AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", ".dockerignore")
PARAGRAPH_CHARACTERS_MAX = 600  # five lines of an editor


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


# Both clients have these; `core.replication` and the metadata's machines have events of one name,
# which no file imports from both.
PAIRED_CLASSES = {
    "client": {"Client", "Consumer", "Producer", "Reading"},
    "broker": {
        "Append", "Applied", "EpochStart", "Flushed", "Following", "GiveUpEpoch", "Leading",
        "Propose", "Woken", "Write", "WriteFailed",
    },
    "operator": set[str](),
}  # fmt: skip


@pytest.mark.parametrize("folder", PAIRED_CLASSES)
def test_no_two_classes_of_a_package_have_one_name(
    folder: str, trees: dict[Path, ast.Module]
) -> None:
    names = Counter(
        node.name
        for path, tree in trees.items()
        if path.is_relative_to(ROOT / folder)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert {name for name, count in names.items() if count > 1} == PAIRED_CLASSES[folder]


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


def words_in(path: Path) -> Iterator[str]:
    """The words of a file that have a standard term; one pattern, since there is much to read."""
    terms, text = PLAIN_WORDS, NAMES.sub("", path.read_text().lower()).replace("_", " ")
    if not str(path.relative_to(ROOT)).startswith(LATER_FOLDERS):
        terms = {**terms, **MORE_PLAIN_WORDS}
    pattern = re.compile(rf"\b(?:{'|'.join(f'({word})' for word in terms)})\b")
    for match in pattern.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        assert match.lastindex is not None
        yield f"{named(path, number)}: {match[0]} -> {[*terms.values()][match.lastindex - 1]}"


def test_texts_and_names_use_standard_terms() -> None:
    files = files_of(*SOURCE_FOLDERS, *OTHER_FOLDERS)
    texts = [path for path in files if path.suffix in {".md", ".py"} and path != Path(__file__)]

    assert [
        word
        for path in [*texts, *(ROOT / name for name in TEXTS_AT_THE_ROOT)]
        if "decisions" not in path.parts
        for word in words_in(path)
    ] == []


def test_paragraphs_of_documents_are_short() -> None:
    """What a link points to is not read, and a block of code or a table is no paragraph."""
    documents = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

    assert [
        named(path, number)
        for path in documents
        for text in [
            re.sub(
                r"^```.*?^```",
                lambda code: "\n" * code[0].count("\n"),
                path.read_text(),
                flags=re.M | re.S,
            )
        ]
        for number, line in enumerate(text.splitlines(), 1)
        if not line.startswith(("|", "    "))
        if len(re.sub(r"\]\([^)]*\)", "]", line)) > PARAGRAPH_CHARACTERS_MAX
    ] == []
