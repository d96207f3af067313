"""Files, classes and methods that the documents name in backticks exist; so do decision records."""

import ast
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(30)  # all sources are read, and parsed

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = [
    "broker",
    "client",
    "operator",
    "benchmarks",
    "examples",
    "tools",
    "tests",
    "crds",
    "helm",
]
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<![\w*])[\w./-]+\.py\b")
CLASS = re.compile(r"([A-Z][A-Z0-9]*[a-z]\w*)(?:\.(_?[a-z]\w*))?(?:\(.*)?")
# Names of other projects, which documents compare with, and a key of an example.
OF_OTHERS = {"IdGenerator", "OnHostUp", "OwnerReferencesPermissionEnforcement", "Zürich"}
DECISIONS = ROOT / "docs" / "decisions"
DECISION = re.compile(
    r"# (?P<number>\d{3}) (?P<title>.+)\n\n"
    r"- Status: (?P<status>proposed|accepted|superseded by \[\d{3}\]\([\w.-]+\))(?:[:;].*)?\n"
    r"- Date: (?P<date>\d{4}-\d\d-\d\d)\n\n"
)


class Tree:
    """The names of the files of the tree, of its classes with their members, and all its text."""

    def __init__(self) -> None:
        paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
        paths += (ROOT / ".ci").iterdir()
        self.files = [f"/{path.relative_to(ROOT)}" for path in paths]
        texts = {
            path: path.read_text()
            for path in paths
            if path.suffix in (".py", ".yaml") and not path.is_relative_to(ROOT / "tests")
        }
        self.words = set(re.findall(r"\w+", "\n".join(texts.values())))
        self.members_by_class: dict[str, set[str]] = defaultdict(set)
        for path, text in texts.items():
            if path.suffix == ".py":
                self._add_classes(ast.parse(text))

    def _add_classes(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.members_by_class[node.name] |= {*map(_name, ast.walk(node))} - {node.name}

    def has_file(self, name: str) -> bool:
        return any(path.endswith(f"/{name.removeprefix('./')}") for path in self.files)

    def has_class(self, name: str, member: str | None) -> bool:
        """Whether it is there; a name without a member may be a word of ours, as a condition."""
        if member is None:
            return name in self.words
        return member in self.members_by_class[name]


def _name(node: ast.AST) -> str:
    """The name that a node of a class gives to one of its members, if it does."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            return name
    return ""


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_exists(tree: Tree, path: Path) -> None:
    spans = SPAN.findall(BLOCK.sub("", path.read_text()))
    classes = [match for span in spans if (match := CLASS.fullmatch(span))]

    assert [name for span in spans for name in FILE.findall(span) if not tree.has_file(name)] == []
    assert [
        match[0]
        for match in classes
        if match[1] not in OF_OTHERS and not tree.has_class(match[1], match[2])
    ] == []


def test_decision_records_begin_alike_and_the_index_has_them_all() -> None:
    rows, numbers = [], []
    for path in sorted(DECISIONS.glob("[0-9]*.md")):
        record = DECISION.match(path.read_text())
        assert record is not None, f"{path.name}: title, then the lines Status and Date"
        number, title, status, date = record.groups()
        rows.append(f"| [{number}]({path.name}) | {title} | {status} | {date} |")
        numbers.append(int(number))

    index = (DECISIONS / "README.md").read_text()
    assert re.findall(r"^\| \[.*", index, re.MULTILINE) == rows
    assert all(second == first + 1 for first, second in pairwise(numbers))
