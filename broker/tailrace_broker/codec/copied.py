"""The checksum of a part of a log, by which a copy is compared with what it was made of.

It chains where each batch is and the checksums in its header, which cover all its bytes. So two
logs whose parts have the same checksum have the same batches there.
"""

import struct
from collections.abc import Iterable

from crc32c import crc32c

from tailrace.wire import BatchHeader

_BATCH = struct.Struct("<qII")


def chained(headers: Iterable[BatchHeader], before: int = 0) -> int:
    """The checksum of these batches behind others, whose checksum is `before`; 0: none."""
    for header in headers:
        before = crc32c(
            _BATCH.pack(header.base_offset, header.header_crc, header.payload_crc), before
        )
    return before
