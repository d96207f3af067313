"""Files, classes and methods that the documents name in backticks exist; so do decision records."""

import ast
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.wire import (
    CLEAN_STOP_FILE,
    DAMAGE_FILE,
    DAMAGED_SUFFIX,
    DELETED_TOPIC_FILE,
    INVENTORY_FILE,
    LOG_START_FILE,
    META_FILE,
    METADATA_LOGS,
    PURGED_SUFFIX,
    TRASH,
)
from tailrace_broker.core.raft.metadata_log import SNAPSHOT_SUFFIX
from tailrace_broker.storage.data_directory import RETIRED_DIRECTORY, RETIRED_MARK
from tailrace_broker.storage.journal.file import JOURNAL_FILES, journal_paths
from tailrace_broker.storage.journal.presence import ACCEPTED_SUFFIX
from tailrace_broker.storage.log.producer_recovery import PRODUCERS
from tailrace_broker.storage.log.rescued_tail import RESCUED
from tailrace_broker.storage.segments.cut import MARK_SUFFIX

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


def test_the_listing_of_a_data_directory_has_what_a_broker_writes() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    _, rest = text.split("## The data directory\n")
    listed = re.findall(r"^    (\S.*?)(?:  |$)", rest.split("\n## ")[0], re.MULTILINE)
    partition = "data/<topic id>/<partition id>"
    assert {
        *(f"data/{each}" for each in (META_FILE, INVENTORY_FILE, CLEAN_STOP_FILE, RETIRED_MARK)),
        f"{RETIRED_DIRECTORY}/",
        *(f"data/metadata/<0 or 1>{Path(each).suffix}" for each in METADATA_LOGS),
        f"data/metadata/<term>-<height>{SNAPSHOT_SUFFIX}",
        *(f"data/journal/<0 to {JOURNAL_FILES - 1}>{each.suffix}" for each in journal_paths(ROOT)),
        f"data/journal/<0 to {JOURNAL_FILES - 1}>.journal{ACCEPTED_SUFFIX}",
        f"data/journal/<0 to {JOURNAL_FILES - 1}>.journal{ACCEPTED_SUFFIX}.<boot>",
        f"{partition}/<end offset>{MARK_SUFFIX}",
        *(f"{partition}/{each}" for each in (LOG_START_FILE, RESCUED, DAMAGE_FILE, PRODUCERS)),
        f"{partition}{DAMAGED_SUFFIX}/",
        f"data/<topic id>/{DELETED_TOPIC_FILE}",
        *(f"data/{TRASH}/<topic id>{each}/" for each in ("", PURGED_SUFFIX)),
    } <= {*listed}
