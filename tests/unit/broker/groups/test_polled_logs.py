"""When a log says that a group's position must move."""

import pytest

from tailrace_broker.groups.polled_logs import fits
from tailrace_broker.groups.remote_log import Fetched, RemoteLog, Wanted


async def never(_: Wanted) -> Fetched:
    raise AssertionError


def log_of(start: int, end: int, *, is_served: bool = False, knows_end: bool = False) -> RemoteLog:
    log = RemoteLog("t", 0, never)
    log.log_start, log.high_watermark = start, end
    log.is_served, log.knows_end = is_served, knows_end
    return log


@pytest.mark.parametrize(
    ("position", "is_served", "knows_end", "is_fitting"),
    [
        (2, False, False, True),
        (5, False, False, True),
        (1, False, False, False),  # retention has removed it, whoever leads
        (6, False, False, True),  # the replica has not heard yet that it is committed
        (6, True, False, True),  # the new leader has not either
        (6, True, True, False),  # the log has lost its end
    ],
)
def test_a_position_moves_back_only_by_what_a_leader_knows(
    position: int, *, is_served: bool, knows_end: bool, is_fitting: bool
) -> None:
    log = log_of(2, 5, is_served=is_served, knows_end=knows_end)

    assert fits(log, position) == is_fitting
