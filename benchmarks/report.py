"""Rows of figures: printed as tables beside the aims and the last stored row, kept as JSON lines.

A row is `{question, date, version, commit, machine, figures}`; a figure's name ends in its unit.
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
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
NAME_WIDTH = 36
NUMBER_WIDTH = 12


def report(question: str, figures: Mapping[str, float], aims: Mapping[str, float]) -> None:
    """Print the table of a question, then add its row to the stored ones."""
    machine = _machine()
    row = {
        "question": question,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version("tailrace"),
        "commit": _commit(),
        "machine": machine,
        "figures": {name: float(f"{value:.4g}") for name, value in figures.items()},
    }
    last = _last_row(question, machine)
    print(_table(row, last, aims), flush=True)
    with RESULTS.open("a") as results:
        results.write(json.dumps(row) + "\n")


def _table(row: dict[str, Any], last: dict[str, Any] | None, aims: Mapping[str, float]) -> str:
    """A line per figure; `ratio` is now to last."""
    compared = f"last: {last['date'][:10]} {last['commit']}" if last else "the first row"
    lines = [
        f"\n{row['question']}   ({compared})",
        f"{'':{NAME_WIDTH}}"
        + "".join(f"{h:>{NUMBER_WIDTH}}" for h in ("now", "aim", "last", "ratio")),
    ]
    for name, now in row["figures"].items():
        before = last["figures"].get(name) if last else None
        numbers = (now, aims.get(name), before, now / before if before else None)
        lines.append(f"{name:{NAME_WIDTH}}" + "".join(map(_cell, numbers)))
    return "\n".join(lines)


def _cell(number: float | None) -> str:
    if number is None:
        return f"{'':{NUMBER_WIDTH}}"
    text = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    return f"{text:>{NUMBER_WIDTH}}"


def _last_row(question: str, machine: dict[str, Any]) -> dict[str, Any] | None:
    """The newest stored row of the question from a machine like this one."""
    if not RESULTS.exists():
        return None
    rows = map(json.loads, RESULTS.read_text().splitlines())
    same = [row for row in rows if row["question"] == question and row["machine"] == machine]
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
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
