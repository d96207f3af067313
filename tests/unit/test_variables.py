"""What environment variables say to runs of tests: a wrong one is named, with what is meant."""

import re

import pytest

from tests.simulation.ring import __main__ as ring
from tests.support.variables import WrongVariableError, is_on, whole_number

NAMES = ("SEED", "SEEDS", "FIRST", "SHRINK")


def number_of(given: str) -> int | None:
    return whole_number("N", None, least=2, meaning="how many", variables={"N": given})


def test_a_number_is_taken_and_nothing_is_the_default() -> None:
    assert number_of("2") == 2
    assert number_of(" 30 ") == 30
    assert number_of("") is None
    assert whole_number("N", 7, meaning="how many", variables={}) == 7


@pytest.mark.parametrize("given", ["1", "-2", "two", "2.0", "²", "0x10", "3 4"])
def test_what_is_no_such_number_is_reported_with_what_is_meant(given: str) -> None:
    with pytest.raises(WrongVariableError, match=r"N: .* of 2 or more: give how many"):
        number_of(given)


def test_a_switch_is_on_off_or_wrong() -> None:
    def found(given: str) -> bool:
        return is_on("N", meaning="to do it", variables={"N": given})

    assert [found("1"), found("0"), found("")] == [True, False, False]
    with pytest.raises(WrongVariableError, match='N: "yes" is not 0 or 1: give N=1 to do it'):
        found("yes")


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SEED=abc", r'SEED: "abc" is not a whole number .*the one seed to \w+, as in SEED=7'),
        ("SEED=-1", 'SEED: "-1" is not a whole number of 0 or more'),
        ("SEEDS=0", r"SEEDS: .* of 1 or more: give how many seeds to \w+, as in SEEDS=200"),
        ("FIRST=1.5", "FIRST: .* give the seed to begin with, as in FIRST=1000"),
        ("SHRINK=yes", "SHRINK: .* give SHRINK=1 to leave out what the scenario of SEED fails"),
        ("SHRINK=1", "SHRINK: it is for one scenario: give its SEED, as in SEED=7"),
    ],
)
def test_a_wrong_variable_of_the_simulation_is_one_sentence_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, meant: str
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)

    assert ring.main() == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("error: ")
    assert reported.err.count("\n") == 1
    assert re.search(meant, reported.err)
