"""The table of docs/performance.md, made from the newest stored row of each question.

The text around the table is written by hand.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RATES, in_short, is_reached, stored_rows

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
START, END = "<!-- results: start -->\n", "<!-- results: end -->\n"
# Title of a column, and the figures that it shows.
COLUMNS = {
    "a second": ("requests_per_s",),
    "MiB/s": ("mib_per_s",),
    "p50 / p99 / p99.9 ms": ("p50_ms", "p99_ms", "p999_ms"),
    "CPU µs an event": ("broker_cpu_us_per_event",),
    "CPU s a GiB": ("broker_cpu_s_per_gib",),
    "RSS MiB": ("rss_max_mib",),
}
TITLES = ("question", *COLUMNS, "against its aims; **missed**", "commit")


def write_page() -> None:
    """Replace the table."""
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}{results_table(stored_rows())}{END}{after}")


def results_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each question that a machine like the last one was asked, whatever its kernel.

    `rows` oldest first, not empty.
    """
    machine = rows[-1]["machine"]
    newest = {row["question"]: row for row in rows if _hardware(row) == _hardware(rows[-1])}
    lines = [" | ".join(TITLES), " | ".join("---" for _ in TITLES)]
    lines += [" | ".join(_cells(row)) for row in newest.values()]
    table = "".join(f"| {line} |\n" for line in lines)
    return f"{table}\nMachine: {machine['cpu']}, {machine['cores']} cores.\n"


def _hardware(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["machine"]["cpu"], row["machine"]["cores"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    figures = row["figures"]
    # The first rows have neither aims nor a sentence.
    aims = [_against(name, figures[name], aim) for name, aim in row.get("aims", {}).items()]
    shown = [
        " / ".join(in_short(figures[name]) for name in names if name in figures)
        for names in COLUMNS.values()
    ]
    return [row.get("asked", row["question"]), *shown, "; ".join(aims), row["commit"]]


def _against(name: str, figure: float, aim: float) -> str:
    """`cpu_percent_of_core 4.1 ≤ 5`; what is missed is bold."""
    sign = "≥" if name.endswith(RATES) else "≤"
    shown = in_short(figure) if is_reached(name, figure, aim) else f"**{in_short(figure)}**"
    return f"`{name}` {shown} (aim {sign} {in_short(aim)})"
