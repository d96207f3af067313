"""What is said of a partition that has its end, and whose loss somebody wants to accept."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tailrace_broker.model.damage import Damage
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.topics import _whole_end_text


@dataclass
class DamagedLog:
    quarantined: list[Damage]
    place: LogPlace = field(default=LogPlace(Path("log"), "orders", UUID(int=1), 3, 7))


@pytest.mark.parametrize(
    ("has_others", "way_on"),
    [
        (False, "restore the files .* give up the offsets of range 7: .* accept-loss 7 --broker 2"),
        (True, r"fetches them from another replica \(tailrace ring status\)$"),
    ],
)
def test_offsets_that_cannot_be_read_are_named_with_the_way_on(
    has_others: bool, way_on: str
) -> None:
    log: Any = DamagedLog([Damage(Path("a.log"), 0, 5, 8), Damage(Path("a.log"), 9, 11, 12)])

    text = _whole_end_text(log, 2, has_others=has_others)

    assert "cannot read offsets 5-7 and 1 more: " in text
    assert re.search(way_on, text)
