"""Which changes `make mutation` makes, and what its steps are given."""

from pathlib import Path

import pytest

from tools.mutation.__main__ import (
    SEEDS_OF_A_RING,
    Ending,
    Outcome,
    ending_of,
    environment_of,
    summary,
)
from tools.mutation.mutations import mutations_of

SOURCE = b'''"""A text."""
LIMIT = 3


class Log:
    def keep(self, size: int) -> bool:
        """Keep."""
        assert size > 0
        _log.info("log.kept", size=size)
        self._rules["log.kept"] += 1
        self.size = size
        if size < 3 and not self.full:
            self.file.write(block)
        return min(size, 1) == 1
'''


def changes(path: str, source: bytes = SOURCE) -> list[tuple[int, str, str]]:
    return [
        (mutation.line, mutation.before, mutation.text) for mutation in mutations_of(path, source)
    ]


def test_in_core_conditions_constants_and_effects_change() -> None:
    assert changes("broker/tailrace_broker/core/log/log.py") == [
        (11, "self.size = size", "pass"),
        (12, "size < 3", "size <= 3"),
        (12, "size < 3 and not self.full", "size < 3 or not self.full"),
        (12, "3", "4"),
        (12, "not self.full", "self.full"),
        (13, "self.file.write(block)", "pass"),
        (13, "self.file.write(block)", "self.file.write(block, is_durable=False)"),
        (14, "min(size, 1)", "max(size, 1)"),
        (14, "min(size, 1) == 1", "min(size, 1) != 1"),
        (14, "1", "2"),
        (14, "1", "2"),
    ]


def test_in_storage_only_calls_that_change_the_disk_do() -> None:
    assert changes("broker/tailrace_broker/storage/log/log.py") == [
        (13, "self.file.write(block)", "pass"),
        (13, "self.file.write(block)", "self.file.write(block, is_durable=False)"),
    ]


@pytest.mark.parametrize(
    ("line", "change"),
    [
        pytest.param("save_damage(path, known)", ("save_damage(path, known)", "pass"), id="helper"),
        pytest.param(
            "with closing(opened): file.truncate(size)",
            ("file.truncate(size)", "pass"),
            id="within with",
        ),
        pytest.param(
            "count += os.pwritev(fd, [block], count)",
            ("os.pwritev(fd, [block], count)", "sum(map(len, [block]))"),
            id="length",
        ),
        pytest.param(
            "error = self._sync(put) if put else None", ("self._sync(put)", "None"), id="condition"
        ),
        pytest.param("errors = [save(x) for x in y]", ("save(x)", "None"), id="comprehension"),
        pytest.param("if self._make_room(1): return", ("self._make_room(1)", "False"), id="if"),
        pytest.param(
            "DirectFile.create(path).close()",
            ("DirectFile.create(path).close()", "pass"),
            id="new file",
        ),
        pytest.param(
            "file = DirectFile.create(path, is_durable=x)",
            ("DirectFile.create(path, is_durable=x)", "DirectFile.create(path, is_durable=False)"),
            id="new file that is used",
        ),
        pytest.param("old.replace(new)", ("old.replace(new)", "pass"), id="path"),
    ],
)
def test_in_storage_a_call_that_changes_the_disk_goes_wherever_it_stands(
    line: str, change: tuple[str, str]
) -> None:
    assert (1, *change) in changes("broker/tailrace_broker/storage/log/log.py", line.encode())


@pytest.mark.parametrize(
    "line",
    [
        "known = replace(known, size=size)",
        "known = msgspec.structs.replace(known, size=size)",
        "known = known._replace(size=size)",
        "before = cut_epochs(epochs, offset)",
        "lowered = known.cut(end)",
        "file.read(size)",
    ],
)
def test_in_storage_what_changes_no_disk_stays(line: str) -> None:
    assert not changes("broker/tailrace_broker/storage/log/log.py", line.encode())


def test_what_only_reads_other_disks_stays() -> None:
    assert not changes("broker/tailrace_broker/storage/inspection/log.py")


@pytest.mark.parametrize(
    ("status", "output", "ending"),
    [
        (0, b"", Ending.PASSED),
        (1, b"E  assert 1 == 2", Ending.FAILED),
        (1, b"Failed: Timeout (>10.0s) from pytest-timeout.", Ending.TIMED_OUT),
        (-9, b"", Ending.KILLED),
    ],
)
def test_a_time_limit_and_a_signal_are_no_failed_test(
    status: int, output: bytes, ending: Ending
) -> None:
    assert ending_of(status, output) is ending


def test_the_summary_counts_time_limits_and_signals_apart() -> None:
    mutation = mutations_of("broker/tailrace_broker/storage/log/log.py", SOURCE)[0]
    endings = [Ending.FAILED, Ending.FAILED, Ending.TIMED_OUT, Ending.KILLED, Ending.PASSED]
    outcomes = [Outcome(mutation, ending, "tests/unit") for ending in endings]

    assert summary(outcomes) == "2 of 5 noticed (40.0%), 1 timed out, 1 ended by a signal"


def test_a_mutated_file_differs_in_one_place() -> None:
    mutation = mutations_of("broker/tailrace_broker/storage/log/log.py", SOURCE)[0]

    assert mutation.apply(SOURCE) == SOURCE.replace(b"self.file.write(block)", b"pass")


def test_what_chooses_mutations_does_not_choose_the_scenarios_of_a_simulator() -> None:
    """With SEED the simulator of rings would run one scenario alone."""
    chosen = {"SEED": "7", "FIRST": "50", "PATH": "/bin"}
    variables = environment_of(["-m", "tests.simulation.ring"], Path("/tree"), chosen)

    assert variables.keys() == {"PATH", "PYTHONPATH", "CI", "SEEDS"}
    assert variables["SEEDS"] == SEEDS_OF_A_RING
