import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Lock

import numpy as np
import pytest

from tailrace_broker.memory.pool import SMALLEST_BYTES, BufferPool, buffer_bytes, tied
from tailrace_broker.model.errors import ReadMemoryFullError

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


@pytest.mark.parametrize("size_bytes", [1, 4_097, 33_000, 100_000, 1_118_208, 33_554_433])
def test_a_buffer_is_at_most_a_page_or_a_quarter_too_large(size_bytes: int) -> None:
    extra_bytes = buffer_bytes(size_bytes) - size_bytes
    assert 0 <= extra_bytes < max(SMALLEST_BYTES, size_bytes // 4)
    assert buffer_bytes(size_bytes) % SMALLEST_BYTES == 0


def test_a_free_buffer_that_is_not_much_too_large_will_do() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    with pool.lend(2 * SMALLEST_BYTES) as buffer:
        first = address_of(buffer)

    with pool.lend(SMALLEST_BYTES) as buffer:
        assert (address_of(buffer), len(buffer)) == (first, 2 * SMALLEST_BYTES)


# --- the read quota -------------------------------------------------------------------------------


def test_a_pinned_buffer_goes_back_when_the_last_view_of_it_is_gone() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    buffer = pool.read.pin(100)
    buffer[:4] = b"mark"
    first, part = address_of(buffer), buffer[1:3]
    del buffer
    other = pool.read.pin(100)

    assert pool.read.used_bytes == 2 * SMALLEST_BYTES
    assert address_of(other) != first
    assert bytes(part) == b"ar"
    del part
    assert pool.read.used_bytes == SMALLEST_BYTES
    again = pool.read.pin(100)
    assert (address_of(again), bytes(again[:4])) == (first, b"mark")


def test_a_view_in_a_cycle_of_garbage_comes_back_when_that_is_collected() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    cycle: list[object] = [pool.read.pin(100)]
    cycle.append(cycle)
    del cycle
    gc.collect()

    assert pool.read.used_bytes == 0


def test_a_pin_does_not_wait() -> None:
    pool = BufferPool(SMALLEST_BYTES)
    kept = pool.read.pin(100)
    with pytest.raises(ReadMemoryFullError, match="4096 of 4096 bytes are in use, 4096 are needed"):
        pool.read.pin(100)
    assert len(kept) == SMALLEST_BYTES


def test_no_share_takes_from_the_other() -> None:
    pool = BufferPool(SMALLEST_BYTES, SMALLEST_BYTES)
    pinned = pool.read.pin(100)
    with pool.lend(100) as buffer:
        assert address_of(buffer) != address_of(pinned)
        with pytest.raises(ReadMemoryFullError):
            pool.read.pin(100)
    del pinned
    with pool.lend(100):
        assert len(pool.read.pin(100)) == SMALLEST_BYTES


def test_free_buffers_make_room_for_a_lease() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    pool.read.pin(CAPACITY_BYTES)
    lease = pool.read.lease(CAPACITY_BYTES - 1)

    assert pool.read.used_bytes == lease.size_bytes == CAPACITY_BYTES - 1
    with pytest.raises(ReadMemoryFullError):
        pool.read.pin(1)


def test_a_lease_changes_its_size_and_goes_back_with_its_last_reference() -> None:
    pool = BufferPool(1000)
    first, second = pool.read.lease(600), pool.read.lease()
    second.resize(400)
    with pytest.raises(ReadMemoryFullError):
        second.resize(401)
    assert (second.size_bytes, pool.read.used_bytes) == (400, 1000)
    second.resize(100)
    assert pool.read.used_bytes == 700
    del first

    assert pool.read.used_bytes == 100
    del second
    assert pool.read.used_bytes == 0


def test_an_answer_larger_than_the_share_gets_all_of_it() -> None:
    pool = BufferPool(1000)
    lease = pool.read.lease(5000)
    assert (lease.size_bytes, pool.read.used_bytes) == (1000, 1000)


def test_a_buffer_keeps_what_is_tied_to_it() -> None:
    pool = BufferPool(1000)
    view = tied(b"value", pool.read.lease(10))
    part = view[1:3]
    del view

    assert (bytes(part), pool.read.used_bytes) == (b"al", 10)
    del part
    assert pool.read.used_bytes == 0


def test_who_waits_is_notified_of_every_return() -> None:
    pool = BufferPool(CAPACITY_BYTES)
    used_bytes: list[int] = []
    pool.read.on_returned = lambda: used_bytes.append(pool.read.used_bytes)
    kept = pool.read.lease(5)
    pool.read.pin(100)
    with pool.lend(100):
        pass

    assert used_bytes[-1] == kept.size_bytes
    assert len(used_bytes) == 1
