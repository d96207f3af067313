"""The version has one place, pyproject.toml; every copy of it agrees."""

import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest
import yaml

import tailrace
from tools import chart
from tools.version import COPIES, ROOT, copies, differing_copies, version_of, write

CHART = ROOT / "helm" / "tailrace"
EPOCH = 1_700_000_000


@pytest.fixture
def other_root(tmp_path: Path) -> Path:
    """The files that have a version, copied."""
    for path in {ROOT / "pyproject.toml", *(path for path, _ in copies(ROOT))}:
        copied = tmp_path / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copied)
    return tmp_path


def test_every_copy_of_the_version_is_that_of_the_project() -> None:
    assert differing_copies(ROOT) == []


def test_the_package_the_installation_and_the_chart_have_the_projects_version() -> None:
    description = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert {
        tailrace.__version__,
        installed_version("tailrace"),  # of an older one: make setup
        description["version"],
        description["appVersion"],
    } == {version_of(ROOT)}


@pytest.mark.parametrize("pattern", COPIES, ids=lambda pattern: pattern[0])
def test_each_kind_of_copy_is_somewhere(pattern: tuple[str, str]) -> None:
    assert {path for path, _ in copies(ROOT)} & set(ROOT.glob(pattern[0]))


def test_another_version_is_written_into_every_copy(other_root: Path) -> None:
    write(other_root, "12.3.40")

    assert version_of(other_root) == "12.3.40"
    assert {version for _, version in copies(other_root)} == {"12.3.40"}
    assert [str(path.relative_to(other_root)) for path, _ in copies(other_root)] == [
        str(path.relative_to(ROOT)) for path, _ in copies(ROOT)
    ]


def test_a_copy_that_differs_is_named(other_root: Path) -> None:
    init = other_root / "client" / "tailrace" / "__init__.py"
    init.write_text(init.read_text().replace(tailrace.__version__, "0.0.1"))

    assert differing_copies(other_root) == ["client/tailrace/__init__.py: 0.0.1"]


def test_a_chart_of_another_version_is_not_packed(tmp_path: Path) -> None:
    target = tmp_path / "chart.tgz"

    with pytest.raises(chart.ChartVersionError, match=r"the project's is 9\.9\.9: python -m tools"):
        chart.pack(CHART, target, version="9.9.9", epoch=EPOCH)
    assert not target.exists()
