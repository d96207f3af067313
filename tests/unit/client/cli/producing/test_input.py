"""The input of `tailrace produce`: whole lines of a stream, or of a pipe that pauses."""

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.lib.interrupts import Interrupts
from tailrace.cli.producing.input import BATCH_BYTES, LiveInput, read_batches

REQUEST_EVENTS_MAX = 500_000  # docs/protocol.md, "Problems", body-too-large


@given(st.binary(max_size=200), st.integers(1, 50))
def test_batches_are_whole_lines_that_together_are_the_stream(
    content: bytes, batch_bytes: int
) -> None:
    batches = list(read_batches(io.BytesIO(content), batch_bytes))
    lines = [line for batch in batches for line in batch]

    assert b"".join(lines) == content
    assert all(line.endswith(b"\n") for line in lines[:-1])
    assert all(b"\n" not in line[:-1] for line in lines)
    assert all(len(b"".join(batch)) >= batch_bytes for batch in batches[:-1])


def test_a_request_of_the_shortest_lines_holds_no_more_events_than_a_broker_takes() -> None:
    [first, *_] = read_batches(io.BytesIO(b"1\n" * BATCH_BYTES))

    assert len(first) <= REQUEST_EVENTS_MAX


@contextmanager
def live_input(content: bytes, write_bytes: int = 1 << 20) -> Iterator[LiveInput]:
    """Of a pipe that a thread fills and closes; no pause of it is taken for one."""
    reading_end, writing_end = os.pipe()

    def fill() -> None:
        with os.fdopen(writing_end, "wb") as pipe:
            for start in range(0, len(content), write_bytes):
                pipe.write(content[start : start + write_bytes])

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield LiveInput(reading_end, Interrupts(), linger_s=60)
    finally:
        thread.join()
        os.close(reading_end)


@pytest.mark.parametrize("write_bytes", [9_999, 3 * BATCH_BYTES])
def test_the_batches_of_a_pipe_are_those_of_a_file(write_bytes: int) -> None:
    """So that a resumed run that is repeated sends the same requests."""
    lines = [b"x" * n for n in range(2_000)]
    lines[7] *= BATCH_BYTES // 7 + 1
    content = b"\r\n".join(lines)
    with live_input(content, write_bytes) as source:
        batches = list(source.batches())

    assert batches == list(read_batches(io.BytesIO(content)))
    assert len(batches) > 3
    assert source.unfinished_bytes == 0
    assert not source.is_terminal


def test_a_line_of_a_pipe_does_not_wait_for_the_next_one() -> None:
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b"1\n2\n3")
    source = LiveInput(reading_end, Interrupts())

    assert next(source.batches()) == [b"1\n", b"2\n"]
    assert source.unfinished_bytes == 1
    assert source.take_rest() == []
    os.close(writing_end)
    assert list(source.batches()) == [[b"3"]]
    os.close(reading_end)


def test_an_interrupted_pipe_is_emptied_up_to_its_last_line_end() -> None:
    reading_end, writing_end = os.pipe()
    source = LiveInput(reading_end, Interrupts())
    os.write(writing_end, b"1\n2")
    next(source.batches())
    os.write(writing_end, b"0\n3\n4")
    os.close(writing_end)

    assert source.take_rest() == [b"20\n", b"3\n"]
    assert source.unfinished_bytes == 1
    os.close(reading_end)
