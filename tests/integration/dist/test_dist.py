"""`make dist`: which files it writes, what is in them, and that they are the same each time."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

import tailrace
from tests.support.dists import ROOT, run_dist, tracked

pytestmark = pytest.mark.integration

VERSION = tailrace.__version__
SDIST = f"tailrace-{VERSION}.tar.gz"
WHEEL = f"tailrace-{VERSION}-py3-none-any.whl"
CHART = f"tailrace-{VERSION}.tgz"
FILES = {SDIST, WHEEL, CHART, "SHA256SUMS"}
IMAGES = [f"tailrace-{image}-{VERSION}.tar" for image in ("broker", "operator", "spark")]
PACKAGE_FOLDERS = {
    "client": ("tailrace", "pyspark_tailrace"),
    "broker": ("tailrace_broker",),
    "operator": ("tailrace_operator",),
}
TEXTS = {".gitignore", "CHANGELOG.md", "LICENSE", "NOTICE", "README.md", "pyproject.toml"}
SDIST_BYTES_MAX = 2_000_000
# Replaces docker: writes down its words, and an archive where it is asked for one.
ENGINE = """\
#!/bin/sh
echo "$@" >> {log}
for word; do
    case "$word" in --output=*) echo image > "${{word#--output=}}";; esac
done
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its files without images."""
    return built(tmp_path_factory.mktemp("built") / "dist")


def built(target: Path, root: Path = ROOT) -> Path:
    done = run_dist(target, root=root)
    assert done.returncode == 0, done.stderr
    return target


def in_tar(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return set(archive.getnames())


def engine_in(folder: Path, text: str) -> str:
    """An engine's command that a test wrote."""
    command = folder / "engine"
    command.write_text(text)
    command.chmod(0o755)
    return str(command)


# --- files ----------------------------------------------------------------------------------------


def test_the_wheel_holds_the_four_packages_and_nothing_else(dist: Path) -> None:
    names = ZipFile(dist / WHEEL).namelist()
    expected = {
        name.partition("/")[2]
        for folder, packages in PACKAGE_FOLDERS.items()
        for package in packages
        for name in tracked(f"{folder}/{package}")
    }

    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"tailrace/py.typed", "tailrace_broker/net/api/docs.html"} <= expected
    assert {name.partition(".dist-info/")[2] for name in names if ".dist-info/" in name} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "licenses/NOTICE",
    }


def test_the_sdist_holds_the_sources_of_the_packages_and_the_licence(dist: Path) -> None:
    names = in_tar(dist / SDIST)

    assert names == {
        f"tailrace-{VERSION}/{name}" for name in {"PKG-INFO", *TEXTS, *tracked(*PACKAGE_FOLDERS)}
    }
    assert f"tailrace-{VERSION}/operator/__init__.py" not in names
    assert (dist / SDIST).stat().st_size < SDIST_BYTES_MAX


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / SDIST) as archive:
        archive.extractall(tmp_path, filter="data")
        epoch = archive.getmembers()[0].mtime

    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel"],
        cwd=tmp_path / f"tailrace-{VERSION}",
        env=os.environ | {"SOURCE_DATE_EPOCH": f"{epoch:.0f}"},
        capture_output=True,
        check=True,
    )

    wheel = tmp_path / f"tailrace-{VERSION}" / "dist" / WHEEL
    assert wheel.read_bytes() == (dist / WHEEL).read_bytes()


def test_the_chart_holds_its_folder_with_the_description_first(dist: Path) -> None:
    with tarfile.open(dist / CHART) as archive:
        names = archive.getnames()
        bodies = {name: archive.extractfile(name) for name in names}

        assert names[0] == "tailrace/Chart.yaml"
        assert {f"helm/{name}" for name in names} == tracked("helm")
        assert [
            name
            for name, body in bodies.items()
            if body is None or body.read() != (ROOT / "helm" / name).read_bytes()
        ] == []


def test_a_second_build_has_the_same_checksums(dist: Path, tmp_path: Path) -> None:
    again = built(tmp_path / "again")

    assert (again / "SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True)
    assert {path.name for path in dist.iterdir()} == FILES


def test_files_of_an_earlier_version_go_and_those_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "tailrace-0.0.1.tgz").touch()
    (tmp_path / "notes").touch()

    built(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "notes"}


def test_files_that_git_does_not_track_are_left_out(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
    for folder in ("client/tailrace", "operator", "operator/tailrace_operator", "helm/tailrace"):
        (clone / folder / "untracked.py").write_text("SECRET = 1\n")

    target = built(tmp_path / "dist", root=clone)

    names = in_tar(target / SDIST) | in_tar(target / CHART) | {*ZipFile(target / WHEEL).namelist()}
    assert [name for name in names if "untracked" in name] == []


def test_outside_of_a_clone_it_says_that_git_is_needed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())

    done = run_dist(tmp_path / "dist", root=tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("error: git describe: fatal: not a git repository")
    assert not (tmp_path / "dist").exists()


# --- images ---------------------------------------------------------------------------------------


def test_an_engine_that_answers_builds_and_saves_each_image(tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = engine_in(tmp_path, ENGINE.format(log=log))

    done = run_dist(tmp_path / "dist", images="1", engine=f"{engine} --context here")

    assert done.returncode == 0, done.stderr
    calls = log.read_text().splitlines()
    assert calls[0] == "--context here version"
    builds = [call for call in calls if " build " in call]
    assert [call.partition("--build-arg=REVISION=")[0] for call in builds] == [
        f"--context here build --file=Dockerfile.{image} --tag=tailrace/{image}:{VERSION} "
        f"--build-arg=VERSION={VERSION} "
        for image in ("broker", "operator", "spark")
    ]
    sums = (tmp_path / "dist" / "SHA256SUMS").read_text().split()[1::2]
    assert sums == sorted([SDIST, WHEEL, CHART, *IMAGES])


def test_without_an_engine_images_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    done = run_dist(tmp_path / "dist", images="", engine="nosuch-engine")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "images are left out: nosuch-engine does not answer; start one, or name its command: "
        "make dist DOCKER=…"
    )
    assert (tmp_path / "dist" / WHEEL).exists()
    kinds = {SDIST: "sdist: the source, for pip", WHEEL: "wheel, for pip", CHART: "Helm chart"}
    for name, kind in kinds.items():
        assert f"{tmp_path / 'dist' / name}  {kind}\n" in done.stdout


@pytest.mark.parametrize(
    ("images", "error"),
    [
        ("1", "no images: false does not answer; start one, or name its command: make dist DOCKER"),
        ("yes", "IMAGES=yes: give 1 to demand the images, 0 to leave them out"),
    ],
)
def test_images_that_cannot_be_had_are_an_error_before_anything_is_built(
    tmp_path: Path, images: str, error: str
) -> None:
    done = run_dist(tmp_path / "dist", images=images, engine="false")

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {error}")
    assert not (tmp_path / "dist").exists()


def test_a_build_that_fails_is_an_error_behind_what_the_engine_says(tmp_path: Path) -> None:
    engine = engine_in(
        tmp_path, '#!/bin/sh\n[ "$1" = version ] || { echo "no such base" >&2; exit 1; }\n'
    )

    done = run_dist(tmp_path / "dist", images="1", engine=engine)

    assert done.returncode == 1
    said, error = done.stderr.splitlines()
    assert said == "no such base"
    assert error == f"error: {engine} build --file=Dockerfile.broker … failed: it says why above"
