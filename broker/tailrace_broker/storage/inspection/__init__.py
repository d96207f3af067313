"""Reads a data directory without a broker and without a change: for `tailrace verify` and `dump`.

What a start would decide is decided by the code of the start. Knows all other parts of `storage/`.
"""

from tailrace_broker.codec.damage import decode_damage as damage_in
from tailrace_broker.codec.segment import SegmentIndex
from tailrace_broker.codec.segment import decode_index as index_in
from tailrace_broker.model.errors import StoredDataError
from tailrace_broker.storage.inspection.brokers import check_brokers
from tailrace_broker.storage.inspection.findings import Finding, Report
from tailrace_broker.storage.inspection.journals import FrameView, frames_in
from tailrace_broker.storage.inspection.pieces import Piece, lines_in, pieces_in

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
