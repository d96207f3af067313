"""The broker's code that reads stored files without a change: the one thing of it used here.

MissingPackageError on import: this installation has no broker.
"""

from tailrace.extras import MissingPackageError, install_command

try:
    from tailrace_broker.storage.inspection import (
        Finding,
        FrameView,
        Piece,
        Report,
        SegmentIndex,
        StoredDataError,
        check_brokers,
        damage_in,
        frames_in,
        index_in,
        lines_in,
        pieces_in,
    )
except ImportError as error:
    raise MissingPackageError(
        f"stored files are read by the broker's own code, which is not installed ({error}): "
        f"{install_command('broker')}"
    ) from error

__all__ = [
    "Finding",
    "FrameView",
    "Piece",
    "Report",
    "SegmentIndex",
    "StoredDataError",
    "check_brokers",
    "damage_in",
    "frames_in",
    "index_in",
    "lines_in",
    "pieces_in",
]
