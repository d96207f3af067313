"""What the main job makes of its variables, and of acknowledgements."""

from pathlib import Path

import pytest

from examples.up import read_settings
from examples.up_brokers import running_brokers
from examples.up_chaos import Killed, longest_gap_s
from examples.up_events import UpError
from tailrace.local.ring import RING_FILE


def test_a_ring_has_three_brokers_and_no_chaos_unless_asked_for() -> None:
    plain = read_settings({"BROKERS": "", "CHAOS": "0"})
    asked = read_settings({"BROKERS": "5", "CHAOS": "1"})
    alone = read_settings({"BROKERS": "1"})

    assert (plain.broker_count, plain.has_chaos) == (3, False)
    assert (asked.broker_count, asked.has_chaos) == (5, True)
    assert (alone.broker_count, alone.has_chaos) == (1, False)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"BROKERS": "0"}, "BROKERS=0 is not a whole number from 1 to 12"),
        ({"BROKERS": "three"}, "BROKERS=three is not a whole number from 1 to 12"),
        ({"BROKERS": "13"}, "BROKERS=13 is not a whole number from 1 to 12"),
        ({"CHAOS": "1", "BROKERS": "1"}, "CHAOS kills a broker, .* make up CHAOS=1"),
        ({"CHAOS": "1", "BROKERS": "2"}, "BROKERS must be 3 or more, .* make up CHAOS=1"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_fits(
    variables: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UpError, match=sentence):
        read_settings(variables)


def test_ports_of_all_brokers_must_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(UpError, match="PORT=65520 leaves no room for 3 brokers: give at most 65509"),
        running_brokers(tmp_path, count=3, port=65520),
    ):
        pass


@pytest.mark.parametrize(("held", "count"), [(3, 1), (1, 3)])
def test_data_of_another_number_of_brokers_is_refused(
    tmp_path: Path, held: int, count: int
) -> None:
    (tmp_path / "0" / "data").mkdir(parents=True)
    (tmp_path / "0.log").touch()
    (tmp_path / RING_FILE).write_text(f'{{"brokers": {held}}}')
    with (
        pytest.raises(UpError, match=f"BROKERS={held}: .* make up BROKERS={count} FRESH=1"),
        running_brokers(tmp_path, count=count, port=9250),
    ):
        pass


def test_the_gap_is_the_longest_of_a_partition_that_the_killed_broker_led() -> None:
    acknowledged = {0: [1.0, 9.0, 10.0, 13.0, 13.5], 1: [9.5, 11.5, 15.0], 2: [0.0, 99.0]}

    assert longest_gap_s(acknowledged, Killed(1, [0, 1], at_s=10.5)) == 3.5
    assert longest_gap_s(acknowledged, Killed(1, [0], at_s=10.5)) == 3.0
    assert longest_gap_s(acknowledged, Killed(1, [2], at_s=99.5)) == 0.0
