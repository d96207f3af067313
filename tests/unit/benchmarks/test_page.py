"""The table of docs/performance.md."""

from typing import Any

import pytest

from benchmarks.page import END, PAGE, START, results_table
from benchmarks.report import is_reached, stored_rows

MACHINE = {"cpu": "EPYC", "cores": 2, "kernel": "6.1"}


def row(question: str = "single", **members: Any) -> dict[str, Any]:
    figures = {"requests_per_s": 20_000.0, "p50_ms": 1.5, "p99_ms": 3.25, "p999_ms": 20.0}
    stored = {"question": question, "commit": "c0ffee", "machine": MACHINE, "figures": figures}
    return stored | members


def test_a_question_has_a_line_with_what_its_newest_row_measured() -> None:
    older = row(commit="0ld")
    newer = row(asked="one event a request", aims={"requests_per_s": 28_000, "p99_ms": 5})

    lines = results_table([older, row("other"), newer]).splitlines()

    assert lines[2:] == [
        "| one event a request | 20,000 |  | 1.5 / 3.25 / 20 |  |  |  "
        "| `requests_per_s` **20,000** (aim ≥ 28,000); `p99_ms` 3.25 (aim ≤ 5) | c0ffee |",
        "| other | 20,000 |  | 1.5 / 3.25 / 20 |  |  |  |  | c0ffee |",
        "",
        "Machine: EPYC, 2 cores.",
    ]


def test_rows_of_another_machine_are_left_out() -> None:
    table = results_table([row("here", machine=MACHINE | {"cores": 64}), row("there")])

    assert "there" in table
    assert "here |" not in table.replace("there |", "")


def test_rows_of_another_kernel_of_the_same_machine_stay() -> None:
    table = results_table([row("here", machine=MACHINE | {"kernel": "6.0"}), row("there")])

    assert "| here |" in table


@pytest.mark.parametrize(
    ("name", "figure", "reached"),
    [
        ("requests_per_s", 30.0, True),
        ("records_per_cpu_s", 29.0, False),
        ("broker_cpu_s_per_gib", 30.0, True),
        ("p99_ms", 31.0, False),
    ],
)
def test_rates_are_to_be_high_and_all_else_low(name: str, figure: float, reached: bool) -> None:
    assert is_reached(name, figure, 30) is reached


def test_the_page_shows_what_is_stored() -> None:
    """`python -m benchmarks --page` makes it so."""
    shown = PAGE.read_text().partition(START)[2].partition(END)[0]

    assert shown == results_table(stored_rows())
