"""The command that adds an extra, by where pip took the package from."""

import json
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.extras import MissingPackageError, install_command, install_command_from, require

CLONE = Path(tailrace.__file__).parents[2]


def test_in_a_clone_the_clone_is_installed_again() -> None:
    assert install_command("spark") == f"pip install -e '{CLONE}[spark]'"


def test_a_package_of_an_index_is_asked_for_by_its_name() -> None:
    assert install_command_from(None, "spark") == "pip install 'tailrace[spark]'"


@pytest.mark.parametrize("name", ["tailrace-0.1.0-py3-none-any.whl", "my clone"])
def test_a_wheel_or_folder_is_named_by_its_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    direct_url = json.dumps({"url": path.as_uri()})

    assert install_command_from(direct_url, "broker") == f"pip install '{path}[broker]'"


def test_a_wheel_that_is_gone_is_not_named() -> None:
    direct_url = json.dumps({"url": "file:///nosuch/tailrace-0.1.0-py3-none-any.whl"})

    command = install_command_from(direct_url, "arrow")

    assert command == "pip install '.[arrow]' in a clone of Tailrace"


@pytest.mark.parametrize(
    ("origin", "location"),
    [
        ({"url": "https://files.example/tailrace.whl"}, "https://files.example/tailrace.whl"),
        (
            {"url": "https://git.example/t", "vcs_info": {"vcs": "git", "commit_id": "0b1c"}},
            "git+https://git.example/t@0b1c",
        ),
    ],
)
def test_what_came_from_elsewhere_is_named_by_its_url(
    origin: dict[str, object], location: str
) -> None:
    command = install_command_from(json.dumps(origin), "aio")

    assert command == f"pip install 'tailrace[aio] @ {location}'"


def test_a_package_of_no_extra_is_installed_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(MissingPackageError, match=r"it needs pandas, .*: pip install pandas$"):
        require("pandas", purpose="it")
