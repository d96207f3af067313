"""The project's version: pyproject.toml has it, and some files have a copy of it.

python -m tools.version          says which version it is; fails where a copy differs
python -m tools.version 0.2.0    writes another one into pyproject.toml and into every copy
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = r"\d+\.\d+\.\d+"  # as Helm wants it as well: SemVer, and PEP 440
PROJECT = ("pyproject.toml", rf'^(version = ")({VERSION})(?="$)')
# An image's tag, or the name of a file.
_IN_TEXTS = rf"(\btailrace(?:/\w+:|-))({VERSION})"
# Which files have a copy, and what it is behind.
COPIES = (
    ("client/tailrace/__init__.py", rf'^(__version__ = ")({VERSION})(?="$)'),
    ("helm/tailrace/Chart.yaml", rf"^((?:version|appVersion): )({VERSION})$"),
    ("Dockerfile.*", rf"^(ARG VERSION=)({VERSION})$"),
    ("README.md", _IN_TEXTS),
    ("docs/**/*.md", _IN_TEXTS),
    ("examples/**/*.sh", _IN_TEXTS),
    ("examples/**/*.yaml", _IN_TEXTS),
)


def main() -> None:
    """Say or write it."""
    match sys.argv[1:]:
        case []:
            differing = differing_copies(ROOT)
            if differing:
                sys.exit(f"error: not version {version_of(ROOT)}: {', '.join(differing)}")
            print(version_of(ROOT))
        case [version] if re.fullmatch(VERSION, version):
            write(ROOT, version)
        case words:
            sys.exit(f"error: {' '.join(words)} is no version: give three numbers, like 0.2.0")


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return version


def copies(root: Path) -> Iterator[tuple[Path, str]]:
    """Each file with a copy, and the version in it; a file has several."""
    for path, pattern in _files(root):
        for _, version in re.findall(pattern, path.read_text(), re.MULTILINE):
            yield path, version


def differing_copies(root: Path) -> list[str]:
    """Return what is not the version of pyproject.toml, as `file: version`."""
    wanted = version_of(root)
    return [
        f"{path.relative_to(root)}: {version}"
        for path, version in copies(root)
        if version != wanted
    ]


def write(root: Path, version: str) -> None:
    """Make it the version of the project and of each copy."""
    for path, pattern in ((root / PROJECT[0], PROJECT[1]), *_files(root)):
        text = path.read_text()
        changed = re.sub(pattern, rf"\g<1>{version}", text, flags=re.MULTILINE)
        if changed != text:
            path.write_text(changed)


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    for glob, pattern in COPIES:
        for path in sorted(root.glob(glob)):
            yield path, pattern


if __name__ == "__main__":
    main()
