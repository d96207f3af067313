"""The world of a simulated process: what goes wrong in it reaches the test."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.simulation.world import SimulatedIo, Violation, World
from tests.support.storage.simulated_disk import SimulatedDisk


def test_what_a_callback_raises_ends_the_life(tmp_path: Path) -> None:
    def on_answer() -> None:
        raise Violation("the answer is wrong")

    async def whole_life(io: SimulatedIo) -> None:
        asyncio.get_running_loop().call_soon(on_answer)
        await asyncio.Event().wait()

    with pytest.raises(Violation, match="the answer is wrong"):
        World(SimulatedDisk(tmp_path, 0), random.Random(0)).run_life(whole_life)
