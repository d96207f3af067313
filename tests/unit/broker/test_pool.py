from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Lock

import numpy as np
import pytest

from tailrace_broker.memory.pool import SMALLEST_BYTES, BufferPool

CAPACITY_BYTES = 8 * SMALLEST_BYTES


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize(
    ("size_bytes", "lent_bytes"),
    [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (8192, 8192), (32_768, 32_768)],
)
def test_a_buffer_has_at_least_the_size_asked_for(size_bytes: int, lent_bytes: int) -> None:
    with BufferPool(CAPACITY_BYTES).lend(size_bytes) as buffer:
        assert len(buffer) == lent_bytes


def test_buffers_start_on_a_page_as_direct_io_wants_them() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    with pool.lend(100) as small, pool.lend(5000) as large:
        assert address_of(small) % 4096 == address_of(large) % 4096 == 0
        assert address_of(small) != address_of(large)


def test_a_buffer_that_came_back_is_lent_again() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    with pool.lend(SMALLEST_BYTES) as buffer:
        buffer[:4] = b"mark"
        first = address_of(buffer)

    with pool.lend(100) as buffer:
        assert (address_of(buffer), bytes(buffer[:4])) == (first, b"mark")


def test_a_buffer_cannot_be_used_when_it_was_given_back() -> None:
    with BufferPool(CAPACITY_BYTES).lend(100) as buffer:
        pass

    with pytest.raises(ValueError, match="released"):
        buffer[0] = 1


def test_a_buffer_comes_back_from_work_that_failed() -> None:
    pool = BufferPool(SMALLEST_BYTES)
    with pytest.raises(OSError, match="disk"), pool.lend(100):
        raise OSError("disk")

    with pool.lend(100) as buffer:
        assert len(buffer) == SMALLEST_BYTES


def test_free_buffers_make_room_for_other_sizes() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    with pool.lend(CAPACITY_BYTES // 2) as buffer, pool.lend(CAPACITY_BYTES // 4):
        buffer[:4] = b"mark"

    with pool.lend(CAPACITY_BYTES) as buffer:
        assert len(buffer) == CAPACITY_BYTES
    with pool.lend(CAPACITY_BYTES // 2) as buffer:
        assert bytes(buffer[:4]) == bytes(4)  # a new one: the kernel has the first again


def test_more_than_the_pool_ever_has_is_our_bug() -> None:
    with pytest.raises(AssertionError), BufferPool(CAPACITY_BYTES).lend(CAPACITY_BYTES + 1):
        pass


def test_a_thread_gets_its_buffer_when_another_gives_one_back() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    asking, got = Event(), Event()

    def borrow() -> None:
        asking.set()
        with pool.lend(CAPACITY_BYTES):
            got.set()

    with ThreadPoolExecutor(1) as threads:
        with pool.lend(100):
            done = threads.submit(borrow)
            asking.wait()
            assert not got.is_set()
        done.result()

    assert got.is_set()


def test_threads_never_hold_more_than_the_capacity_and_all_get_their_turn() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    start, lock = Barrier(8), Lock()
    held_bytes = 0
    most_held_bytes = 0

    def borrow(index: int) -> int:
        nonlocal held_bytes, most_held_bytes
        start.wait()
        for turn in range(20):
            with pool.lend(SMALLEST_BYTES << (index + turn) % 4) as buffer:
                with lock:
                    held_bytes += len(buffer)
                    most_held_bytes = max(most_held_bytes, held_bytes)
                buffer[:8] = index.to_bytes(8, "little")
                assert int.from_bytes(buffer[:8], "little") == index
                with lock:
                    held_bytes -= len(buffer)
        return turn

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(borrow, range(8))) == [19] * 8

    assert held_bytes == 0
    assert SMALLEST_BYTES <= most_held_bytes <= CAPACITY_BYTES
