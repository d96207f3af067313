"""What a release publishes, in dist/: sdist, wheel, Helm chart, images, and SHA256SUMS of them.

`make dist` runs it; variables choose:

    IMAGES=1         fail where no engine can build the images; without it they are left out
    IMAGES=0         leave the images out
    DOCKER=command   the engine, in place of docker or podman

Only files that git tracks get in. With the same commit and build.lock, sdist, wheel and chart are
the same bytes each time: their times are that of the commit, or SOURCE_DATE_EPOCH.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import chart, images
from tools.version import ROOT, differing_copies, version_of

FILES = "tailrace-*"
CHECKSUMS = "SHA256SUMS"
KIB = 1024
KINDS = {
    ".tar.gz": "sdist: the source, for pip",
    ".whl": "wheel, for pip",
    ".tgz": "Helm chart",
    ".tar": "image, for docker load",
}


class DistError(Exception):
    """Why nothing was built, in a sentence with the remedy."""


def main() -> None:
    """Build all; exit 1 with one sentence where that fails."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the clone to build from")
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="where the files go")
    given = parser.parse_args()
    try:
        engine = _engine()
        _build(given.root, given.target, engine)
    except (DistError, chart.ChartVersionError) as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        print(error.stderr or "", end="", file=sys.stderr)
        sys.exit(f"error: {' '.join(error.cmd[:3])} … failed: it says why above")


def _engine() -> list[str] | None:
    """Return the engine that builds images; None: they are left out, which is said."""
    wanted = os.environ.get("IMAGES", "")
    if wanted not in ("", "0", "1"):
        raise DistError(f"IMAGES={wanted}: give 1 to demand the images, 0 to leave them out")
    if wanted == "0":
        return None
    engine = images.engine_of(os.environ)
    if engine is None:
        reason = f"{os.environ.get('DOCKER') or ' or '.join(images.ENGINES)} does not answer"
        remedy = "start one, or name its command: make dist DOCKER=…"
        if wanted == "1":
            raise DistError(f"no images: {reason}; {remedy}")
        print(f"images are left out: {reason}; {remedy}", flush=True)
    return engine


def _build(root: Path, target: Path, engine: list[str] | None) -> None:
    version = version_of(root)
    if differing := differing_copies(root):
        raise DistError(
            f"not version {version}: {', '.join(differing)}: python -m tools.version {version}"
        )
    revision = _git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git(root, "log", "-1", "--format=%ct")
    print(f"tailrace {version} of {revision}", flush=True)
    target.mkdir(parents=True, exist_ok=True)
    for path in (*target.glob(FILES), target / CHECKSUMS):  # of an earlier build
        path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tailrace"
        _copy_tracked(root, tree)
        _build_packages(tree, target.absolute(), epoch)
        package = target / f"tailrace-{version}.tgz"
        chart.pack(tree / "helm" / "tailrace", package, version=version, epoch=int(epoch))
        if engine:
            images.build(engine, tree, target.absolute(), version=version, revision=revision)
    _write_checksums(target)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise DistError("git is not installed: its list of files is what gets in") from error
    except subprocess.CalledProcessError as error:
        raise DistError(f"git {words[0]}: {error.stderr.strip()}") from error
    return done.stdout.strip()


def _copy_tracked(root: Path, tree: Path) -> None:
    """Copy what git tracks, as it is now; a file that was removed is left out."""
    for name in _git(root, "ls-files", "-z").split("\0"):
        if name and (root / name).is_file():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, path)


def _build_packages(tree: Path, target: Path, epoch: str) -> None:
    """Build the sdist and the wheel."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(target)],
        cwd=tree,
        env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
        capture_output=True,
        text=True,
        check=True,
    )


def _kind_of(name: str) -> str:
    """What a file of a release is, by the end of its name."""
    return next(kind for end, kind in KINDS.items() if name.endswith(end))


def _write_checksums(target: Path) -> None:
    """Write them as `sha256sum --check` reads them, and print each file with its size."""
    lines = []
    for path in sorted(target.glob(FILES)):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
        print(f"{path.stat().st_size / KIB:>12,.0f} KiB  {path}  {_kind_of(path.name)}")
    (target / CHECKSUMS).write_text("".join(lines))
    print(f"{'':16}  {target / CHECKSUMS}", flush=True)


if __name__ == "__main__":
    main()
