"""`tailrace verify`: reads all that a broker has stored, and says which bytes are damaged."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.cli.lib.options import OUTPUT, counted, size_text
from tailrace.cli.lib.parser import Verb, parameter
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.lib.inspection import Finding, Report


def verify(*, directory: Path, output: str) -> None:
    """Check all that a broker has stored; exit 1 when something is damaged or missing (✗).

    DIR is a broker's data directory, or any folder with its files; of one that holds several
    brokers each is checked for itself. What a start would refuse or find damaged is found here by
    the same code. A ! does not stop a start: what the next one cuts away is not known to have
    been acknowledged. Only reads, also beside a running broker, of which it reports what is
    damaged or missing. Needs the broker's packages.
    """
    from tailrace.cli.lib.inspection import StoredDataError, check_brokers
    from tailrace.cli.lib.output import show

    next(directory.iterdir(), None)  # OSError: there is no such directory
    try:
        reports = check_brokers(directory)
    except StoredDataError as error:
        raise TailraceError(error.detail) from error
    reports = sorted([*reports, *_missing_members(directory, reports)])
    if not reports:
        raise TailraceError(f"{directory} has no files of a broker: name its data directory")
    lines = [line for report in reports for line in _lines(report, is_named=len(reports) > 1)]
    show(output, _document(reports), "\n".join(lines))
    if any(report.bad_count for report in reports):
        raise SystemExit(1)


def _missing_members(directory: Path, reports: "Sequence[Report]") -> "list[Report]":
    """Brokers of the rings in the directory that have lost all that they had."""
    from tailrace.cli.lib.inspection import Finding, Report
    from tailrace.local.ring import missing_members

    parents = {directory, *(report.directory.parent for report in reports)}
    tops = [parent for parent in parents if parent.is_relative_to(directory)]
    return [
        Report(
            missing,
            0,
            0,
            [
                Finding(
                    missing,
                    None,
                    f"has lost the data of a broker of the ring, as {file} says; restore it from "
                    "a copy",
                )
            ],
        )
        for top in tops
        for missing, file in missing_members(top)
    ]


def _lines(report: "Report", *, is_named: bool) -> list[str]:
    """A line a finding, then what was looked at; `is_named`: where, too."""
    reports = [
        f"{'✗' if finding.is_bad else '!'} {_where(finding)}: {finding.text}"
        for finding in report.findings
    ]
    size = size_text(report.size_bytes).replace(".0 ", " ")
    files = counted(report.file_count, "file")
    sign = "✗" if report.bad_count else "✓"
    name = f"{report.directory}: " if is_named else ""
    return [*reports, f"{sign} {name}{files}, {size}, {report.bad_count:,} bad"]


def _where(finding: "Finding") -> str:
    byte = "" if finding.position is None else f", byte {finding.position}"
    return f"{finding.file}{byte}"


def _document(reports: "Sequence[Report]") -> dict[str, Any]:
    brokers = [
        {
            "directory": str(report.directory),
            "files": report.file_count,
            "bytes": report.size_bytes,
            "bad": report.bad_count,
        }
        for report in reports
    ]
    return {
        **{name: sum(broker[name] for broker in brokers) for name in ("files", "bytes", "bad")},
        "brokers": brokers,
        "findings": [_finding(finding) for report in reports for finding in report.findings],
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
            help="a broker's data directory, a folder in it, or one that holds several brokers",
            complete="file",
        ),
        OUTPUT,
    ),
    ("tailrace verify .", "tailrace verify . -o json"),
)
