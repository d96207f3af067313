"""What an inspection reports."""

from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """Something in a file that should not be there, at its first bad byte; or one that is missing.

    `is_bad`: it is damage. Else the next start goes on; what it cuts away is not known to have been
    acknowledged.
    """

    file: Path
    position: int | None
    text: str
    is_bad: bool = True


class Report(NamedTuple):
    """What was found at one broker, or in a folder with some of its files."""

    directory: Path
    file_count: int
    size_bytes: int
    findings: list[Finding]

    @property
    def bad_count(self) -> int:
        """Count the findings that are damage."""
        return sum(finding.is_bad for finding in self.findings)


def refused(file: Path, detail: str, position: int | None = None) -> Finding:
    """Report what a start says of a file, without its name, which a finding has."""
    return Finding(file, position, detail.removeprefix(str(file)).lstrip(": "))
