"""`tailrace verify`: reads all that a broker has stored, and says which bytes are damaged."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.cli.options import OUTPUT, counted, size_text
from tailrace.cli.parser import Verb, parameter
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.cli.stored_files import Report
    from tailrace.cli.stored_logs import Finding


def verify(*, directory: Path, output: str) -> None:
    """Check all that a broker has stored; exit 1 when something is damaged (✗).

    DIR is a broker's data directory, or any folder with its files. A ! is no damage: what the next
    start does away with, since it was never acknowledged. Only reads, also beside a running broker.
    """
    from tailrace.cli import segments
    from tailrace.cli.output import show
    from tailrace.cli.stored_files import check_files

    next(directory.iterdir(), None)  # OSError: there is no such directory
    report = check_files(directory)
    if not report.file_count:
        raise TailraceError(f"{directory} has no files of a broker: name its data directory")
    is_checked = segments.crc32c is not None
    if not is_checked:
        print(segments.unchecked_note(), file=sys.stderr)
    show(output, _document(report, is_checked=is_checked), "\n".join(_lines(report)))
    if report.bad_count:
        raise SystemExit(1)


def _lines(report: "Report") -> list[str]:
    """A line a finding, then what was looked at."""
    found = [
        f"{'✗' if each.is_bad else '!'} {each.file}, byte {each.position}: {each.text}"
        for each in report.findings
    ]
    size = size_text(report.size_bytes).replace(".0 ", " ")
    files = counted(report.file_count, "file")
    sign = "✗" if report.bad_count else "✓"
    return [*found, f"{sign} {files}, {size}, {report.bad_count:,} bad"]


def _document(report: "Report", *, is_checked: bool) -> dict[str, Any]:
    return {
        "files": report.file_count,
        "bytes": report.size_bytes,
        "bad": report.bad_count,
        "checksums": "verified" if is_checked else "unchecked",
        "findings": [_finding(each) for each in report.findings],
    }


def _finding(finding: "Finding") -> dict[str, Any]:
    return {
        "file": str(finding.file),
        "byte": finding.position,
        "finding": finding.text,
        "bad": finding.is_bad,
    }


VERB = Verb(
    verify,
    (
        parameter(
            "directory",
            metavar="DIR",
            type=Path,
            help="the data directory of a broker, or a folder in it or copied from it",
            complete="file",
        ),
        OUTPUT,
    ),
    ("tailrace verify .", "tailrace verify . -o json"),
)
