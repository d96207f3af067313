"""What a request of several partitions is answered when its parts end differently."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tailrace_broker.model.append_outcome import AppendFailed
from tailrace_broker.model.errors import NoLeaderError, OutcomeUnknownError, TailraceError
from tailrace_broker.net.api.produce import _Collected

REFUSED = NoLeaderError("nobody leads it; nothing was stored")
UNKNOWN = OutcomeUnknownError("it may be stored")


@pytest.mark.parametrize(
    ("errors", "answered"),
    [((REFUSED, UNKNOWN), UNKNOWN), ((UNKNOWN, REFUSED), UNKNOWN), ((REFUSED, REFUSED), REFUSED)],
)
def test_a_request_that_failed_in_all_partitions_may_be_stored_if_it_may_be_in_one(
    errors: tuple[TailraceError, TailraceError], answered: TailraceError
) -> None:
    answers: list[TailraceError] = []
    request: Any = SimpleNamespace(answer_error=answers.append, failed=lambda *_: b"{}")
    collected = _Collected(request, np.array([0, 1], np.int32), len(errors))
    for partition, error in enumerate(errors):
        collected._add(partition, partition, 1, AppendFailed(error))

    assert answers == [answered]
