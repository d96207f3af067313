"""Packages that a base install does without: imported when they are needed, named when absent."""

from importlib import import_module

from tailrace.errors import TailraceError


class MissingPackageError(TailraceError, ImportError):
    """What was asked for needs a package that is not installed."""


def require(*packages: str, purpose: str, install: str) -> None:
    """MissingPackageError unless all can be imported; `install`: what pip is to be told."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"{purpose} needs {package}, which cannot be imported ({error}): "
                f"pip install {install}"
            ) from error


def require_arrow(purpose: str) -> None:
    """MissingPackageError without the extra `arrow`."""
    require("pyarrow", "numpy", "crc32c", purpose=purpose, install="'tailrace[arrow]'")
