"""Seeds in which consumers of the simulator were wrong, and not what they read from."""

import pytest

from tests.simulation.ring.run import run
from tests.simulation.ring.scenario import make_scenario


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3959, id="a topic that is restored late"),
        pytest.param(7959, id="a topic that is created late"),
        pytest.param(8015, id="one of two topics that is created late"),
    ],
)
def test_a_seed_that_failed_keeps_every_promise(seed: int) -> None:
    assert run(make_scenario(seed)).failure is None
