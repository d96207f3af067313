"""Packages that a base install does without: imported when they are needed, named when absent."""

import json
import shlex
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tailrace.errors import TailraceError

_CLONE = Path(__file__).parents[2]  # where `pip install --editable` leaves the package


class MissingPackageError(TailraceError, ImportError):
    """What was asked for needs a package that is not installed."""


def require(*packages: str, purpose: str, extra: str | None = None) -> None:
    """MissingPackageError unless all can be imported; `extra` brings them."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            remedy = install_command(extra) if extra else f"pip install {package}"
            raise MissingPackageError(
                f"{purpose} needs {package}, which cannot be imported ({error}): {remedy}"
            ) from error


def require_arrow(purpose: str) -> None:
    """MissingPackageError without the extra `arrow`."""
    require("pyarrow", "numpy", "crc32c", purpose=purpose, extra="arrow")


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    from importlib.metadata import PackageNotFoundError, distribution

    if (_CLONE / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{_CLONE}[{extra}]')}"
    try:
        direct_url = distribution("tailrace").read_text("direct_url.json")
    except PackageNotFoundError:
        return _from_a_clone(extra)
    return install_command_from(direct_url, extra)


def install_command_from(direct_url: str | None, extra: str) -> str:
    """Return the same for a package with this `direct_url.json` (PEP 610).

    None is a package that came from an index.
    """
    if direct_url is None:
        return f"pip install {shlex.quote(f'tailrace[{extra}]')}"
    origin = json.loads(direct_url)
    url = urlsplit(origin["url"])
    if url.scheme == "file":
        path = Path(unquote(url.path))
        if not path.exists():  # a wheel that only the build of an image had
            return _from_a_clone(extra)
        return f"pip install {shlex.quote(f'{path}[{extra}]')}"
    location = origin["url"]
    if "vcs_info" in origin:
        location = f"{origin['vcs_info']['vcs']}+{location}@{origin['vcs_info']['commit_id']}"
    return f"pip install {shlex.quote(f'tailrace[{extra}] @ {location}')}"


def _from_a_clone(extra: str) -> str:
    return f"pip install '.[{extra}]' in a clone of Tailrace"
