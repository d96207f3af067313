"""Which changes `make mutation` makes, and what its steps are given."""

from pathlib import Path

from tools.mutation.__main__ import SEEDS_OF_A_RING, environment_of
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


def changes(path: str) -> list[tuple[int, str, str]]:
    return [
        (mutation.line, mutation.before, mutation.text) for mutation in mutations_of(path, SOURCE)
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


def test_a_mutated_file_differs_in_one_place() -> None:
    mutation = mutations_of("broker/tailrace_broker/storage/log/log.py", SOURCE)[0]

    assert mutation.apply(SOURCE) == SOURCE.replace(b"self.file.write(block)", b"pass")


def test_what_chooses_mutations_does_not_choose_the_scenarios_of_a_simulator() -> None:
    """With SEED the simulator of rings would run one scenario alone."""
    chosen = {"SEED": "7", "FIRST": "50", "PATH": "/bin"}
    variables = environment_of(["-m", "tests.simulation.ring"], Path("/tree"), chosen)

    assert variables.keys() == {"PATH", "PYTHONPATH", "CI", "SEEDS"}
    assert variables["SEEDS"] == SEEDS_OF_A_RING
