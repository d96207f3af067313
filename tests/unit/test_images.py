"""The image recipes: what they install is what is tested, and who they run as."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ["broker", "operator", "spark"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(*paths: str) -> set[str]:
    """Each `name==version` with its marker and hashes, of lock files below the root."""
    text = "".join((ROOT / path).read_text() for path in paths).replace("\\\n", "")
    return {" ".join(line.split()) for line in text.splitlines() if line}


def recipe(image: str) -> str:
    """The Dockerfile's text."""
    return (ROOT / f"Dockerfile.{image}").read_text()


@pytest.mark.parametrize("image", [*IMAGES, "build"])
def test_an_image_holds_the_versions_that_the_tests_run_with(image: str) -> None:
    in_image = locked(f"docker/{image}.lock")

    assert in_image
    assert in_image - locked("requirements.lock", "requirements-spark.lock") == set()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_holds_all_that_its_extra_asks_for(image: str) -> None:
    extra = PROJECT["optional-dependencies"][image]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in extra}

    assert names - {line.split("==")[0] for line in locked(f"docker/{image}.lock")} == set()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_of_any_base_and_labelled_with_the_projects_version(image: str) -> None:
    text = recipe(image)

    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert f"\nARG VERSION={PROJECT['version']}\n" in text


@pytest.mark.parametrize(
    ("image", "user"), [("broker", 10250), ("operator", 10250), ("spark", 185)]
)
def test_an_image_runs_as_a_user_by_number(image: str, user: int) -> None:
    # By name the kubelet could not see that it is not root.
    assert re.findall(r"^USER (\d+)", recipe(image), re.MULTILINE) == [str(user)]


@pytest.mark.parametrize("image", IMAGES)
def test_what_a_recipe_copies_is_there_and_part_of_the_context(image: str) -> None:
    copied = [
        path
        for line in re.findall(r"^COPY (?!--from)(.+)", recipe(image), re.MULTILINE)
        for path in line.split()[:-1]
    ]
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }

    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert {Path(path).parts[0] for path in copied if path != "."} <= allowed
    assert {"pyproject.toml", "broker", "client", "operator", *PROJECT["license-files"]} <= allowed
