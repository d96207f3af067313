"""Rows of figures: printed beside the aims and the last stored row, kept as JSON lines on demand.

A stored row is `{question, asked, date, version, commit, machine, figures, aims}`; a figure's name
ends in its unit. The first rows have neither `asked` nor `aims`.
Rows of another machine are not compared with: CPU times of two processors say nothing together.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.load import LoadResult

RESULTS = Path(__file__).with_name("results.jsonl")
NAME_WIDTH = 36
NUMBER_WIDTH = 12
MIB = 1 << 20
GIB = 1 << 30
# Of figures that are to be high; all others are to be low.
RATES = ("_per_s", "_per_cpu_s")


class Row(NamedTuple):
    """A variant of a question (`question` names it, `asked` is its sentence) and the answer."""

    question: str
    asked: str
    figures: Mapping[str, float]
    aims: Mapping[str, float]


def costs(result: LoadResult, *, event_count: int, event_bytes: int) -> dict[str, float]:
    """Report the figures of every load; `event_bytes` of one event."""
    load_bytes = event_count * event_bytes
    return {
        "requests_per_s": result.request_count / result.seconds,
        "mib_per_s": load_bytes / MIB / result.seconds,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        "p999_ms": result.p999_ms,
        "broker_cpu_us_per_event": result.server_cpu_s / event_count * 1e6,
        "broker_cpu_s_per_gib": result.server_cpu_s / load_bytes * GIB,
        "broker_kernel_share": result.server_kernel_share,
        "generator_cpu_us_per_request": result.generator_cpu_s / result.request_count * 1e6,
        "other_cores": result.other_cores,
    }


def print_row(row: Row) -> None:
    """A line per figure, beside its aim, the last stored one, and now to last."""
    last = _last_row(row.question, _machine())
    compared = f"last: {last['date'][:10]} {last['commit']}" if last else "the first row"
    head = "".join(f"{title:>{NUMBER_WIDTH}}" for title in ("now", "aim", "last", "ratio"))
    print(f"\n{row.question}: {row.asked}\n{f'({compared})':{NAME_WIDTH}}{head}")
    for name, now in row.figures.items():
        before = last["figures"].get(name) if last else None
        numbers = (now, row.aims.get(name), before, now / before if before else None)
        print(f"{name:{NAME_WIDTH}}" + "".join(map(_cell, numbers)), flush=True)


def store_row(row: Row) -> None:
    """Add it to the stored ones."""
    stored = {
        "question": row.question,
        "asked": row.asked,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version("tailrace"),
        "commit": _commit(),
        "machine": _machine(),
        "figures": {name: float(f"{value:.4g}") for name, value in row.figures.items()},
        "aims": dict(row.aims),
    }
    with RESULTS.open("a") as results:
        results.write(json.dumps(stored) + "\n")


def stored_rows() -> list[dict[str, Any]]:
    """All, oldest first."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def is_reached(name: str, figure: float, aim: float) -> bool:
    """Whether a figure is as high, or as low, as it is to be."""
    return figure >= aim if name.endswith(RATES) else figure <= aim


def in_short(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def _cell(number: float | None) -> str:
    return f"{'' if number is None else in_short(number):>{NUMBER_WIDTH}}"


def _last_row(question: str, machine: dict[str, Any]) -> dict[str, Any] | None:
    """The newest stored row of the question from a machine like this one."""
    same = [
        row for row in stored_rows() if row["question"] == question and row["machine"] == machine
    ]
    return same[-1] if same else None


def _machine() -> dict[str, Any]:
    """What CPU times depend on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cores = len(os.sched_getaffinity(0))
    # Not every architecture names a model.
    cpu = models[0] if models else platform.machine()
    return {"cpu": cpu, "cores": cores, "kernel": platform.release()}


def _commit() -> str:
    """Short id, with + when the tree has changes; "unknown" outside a repository."""
    git = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty=+", "--abbrev=10"]
    completed = subprocess.run(git, capture_output=True, text=True, check=False)
    return completed.stdout.strip() or "unknown"
