"""The kernel keeps no second copy of the data, and the broker no more than its shares."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024
# The long form of a release: 4096.
WRITTEN_BYTES = int(os.environ.get("PAGE_CACHE_TEST_MIB", "256")) * MEBIBYTE
EVENT_BYTES = 64 * 1024
REQUEST_EVENTS = 64
READ_BYTES = 4 * MEBIBYTE
RESIDENT_BYTES_MAX = MEBIBYTE
# The shares of a broker, as small as they may be.
SHARES = {
    "produce_memory_bytes": 16 * MEBIBYTE,
    "read_memory_bytes": 40 * MEBIBYTE,
    "io_buffer_bytes": 40 * MEBIBYTE,
    "cache_bytes": 8 * MEBIBYTE,
}
# The interpreter with its libraries, and what a request takes while it is worked on.
OTHER_BYTES = 110 * MEBIBYTE

_libc = ctypes.CDLL(None, use_errno=True)


def resident_bytes(path: Path) -> int:
    """What the kernel's page cache has of a file (mincore(2))."""
    size_bytes = path.stat().st_size
    if not size_bytes:
        return 0
    page_count = -(-size_bytes // mmap.PAGESIZE)
    with (
        path.open("rb") as file,
        # Private: so that its address can be had; nothing is written, so it is the file's pages.
        mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as mapping,
    ):
        states = (ctypes.c_ubyte * page_count)()
        first = ctypes.c_char.from_buffer(mapping)
        failed = _libc.mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size_bytes), states
        )
        del first
        assert not failed, os.strerror(ctypes.get_errno())
        return sum(state & 1 for state in states) * mmap.PAGESIZE


def data_files(broker: RunningBroker) -> list[Path]:
    """Segments, and the journal if there is one."""
    data = broker.data_dir / "data"
    return [*data.rglob("*.log"), *data.rglob("*.journal")]


def write(client: Client) -> None:
    """Incompressible events, of which LZ4 makes nothing smaller."""
    value = b'"%s"\n'
    body = b"".join(value % os.urandom(EVENT_BYTES // 2).hex().encode() for _ in range(8))
    body *= REQUEST_EVENTS // 8
    for _ in range(WRITTEN_BYTES // len(body)):
        client.produce_lines("t", body, key="key")


def read_all(client: Client) -> int:
    """Every batch, from disk; their bytes."""
    read_bytes = 0
    for row in client.offsets(["t"]):
        offset, end = row.readable().start, row.readable().stop
        while offset < end:
            fetched = client.read_batches("t", row.partition, offset, max_bytes=READ_BYTES)
            read_bytes += len(fetched.body)
            offset = fetched.next_offset
    return read_bytes


def test_a_file_that_was_just_read_is_seen_in_the_page_cache(tmp_path: Path) -> None:
    """Else this file would prove nothing."""
    path = tmp_path / "read"
    path.write_bytes(os.urandom(MEBIBYTE))
    path.read_bytes()
    assert resident_bytes(path) == MEBIBYTE


@pytest.mark.timeout(60 + WRITTEN_BYTES // MEBIBYTE)
def test_data_is_neither_kept_by_the_kernel_nor_by_the_broker(tmp_path: Path) -> None:
    with start_broker(tmp_path, **SHARES, segment_bytes=64 * MEBIBYTE) as broker:
        if not broker.metrics()["tailrace_direct_io"]:
            pytest.skip("no direct I/O here: the kernel keeps what it likes")
        with Client(broker.url) as client:
            client.create_topic("t", partitions_per_range=1)
            write(client)
            stored_bytes = read_all(client)

        files = data_files(broker)
        sizes = sum(path.stat().st_size for path in files)
        assert sizes >= stored_bytes > 8 * SHARES["cache_bytes"]
        assert sum(map(resident_bytes, files)) < RESIDENT_BYTES_MAX
        metrics = broker.metrics()
        assert metrics["tailrace_log_disk_reads_total"] > 0
        assert metrics["process_resident_memory_bytes"] < sum(SHARES.values()) + OTHER_BYTES
