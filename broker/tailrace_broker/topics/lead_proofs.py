"""Those who wait until it is sure that this process still leads a range, and rounds they share."""

import asyncio
from collections.abc import Callable

# As long as a leader may be suspected without being deposed.
PROOF_SECONDS = 1.0

_Waiting = dict[asyncio.Future[bool], None]  # in the order of their coming


class LeadProofs:
    """State changes on the event loop only."""

    def __init__(self, ask: Callable[[int], object], *, seconds: float = PROOF_SECONDS) -> None:
        """`ask` begins a round for a range. `proven` or `ended` follow, or nothing.

        `seconds`: until a proof is given up.
        """
        self._ask = ask
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, _Waiting] = {}
        self._next: dict[int, _Waiting] = {}

    async def prove(self, range_id: int) -> bool:
        """Whether this process led the range after the call; False: it is not sure in time."""
        proof: asyncio.Future[bool] = self._loop.create_future()
        if range_id in self._under_way:  # whose frames have left already
            waiting = self._next.setdefault(range_id, {})
            waiting[proof] = None
        else:
            waiting = {proof: None}
            self._begin(range_id, waiting)
        try:
            async with asyncio.timeout(self._seconds):
                return await proof
        except TimeoutError:
            return False
        finally:
            waiting.pop(proof, None)

    def proven(self, range_id: int) -> None:
        """The round is over."""
        _settle(self._under_way.pop(range_id, {}), is_proven=True)
        waiting = self._next.pop(range_id, None)
        if waiting is not None:
            self._begin(range_id, waiting)

    def ended(self, range_id: int) -> None:
        """This process leads the range no more."""
        for waiting in (self._under_way, self._next):
            _settle(waiting.pop(range_id, {}), is_proven=False)

    def _begin(self, range_id: int, waiting: _Waiting) -> None:
        self._under_way[range_id] = waiting
        self._ask(range_id)


def _settle(waiting: _Waiting, *, is_proven: bool) -> None:
    for proof in waiting:
        if not proof.done():
            proof.set_result(is_proven)
