"""What of a log is known to be damaged."""

from pathlib import Path
from typing import NamedTuple


class Damage(NamedTuple):
    """Offsets `[first_offset, end_offset)` that cannot be read, and where the damage begins."""

    path: Path
    position: int
    first_offset: int
    end_offset: int
