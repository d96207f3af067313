"""What `tailrace produce` makes of lines and options, without a broker."""

import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.lib.interrupts import Interrupts
from tailrace.cli.lib.times import record_time_us
from tailrace.cli.producing.form import BadLine, Form, parse_key_path, record_key
from tailrace.cli.producing.input import BATCH_BYTES, LiveInput, read_batches
from tailrace.cli.producing.run import cut
from tailrace.wire import INTEGER_US_MIN

REQUEST_EVENTS_MAX = 500_000  # docs/protocol.md, "Problems", body-too-large


# --- input ----------------------------------------------------------------------------------------


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
def live_input(content: bytes) -> Iterator[LiveInput]:
    """Of a pipe that a thread fills and closes."""
    reading_end, writing_end = os.pipe()

    def fill() -> None:
        with os.fdopen(writing_end, "wb") as pipe:
            pipe.write(content)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield LiveInput(reading_end, Interrupts())
    finally:
        thread.join()
        os.close(reading_end)


def test_a_pipe_brings_whole_lines_and_at_its_end_the_rest() -> None:
    content = b"\r\n".join(b"%d" % n for n in range(300_000))
    with live_input(content) as source:
        batches = list(source.batches())

    assert b"".join(line for batch in batches for line in batch) == content
    assert all(line.endswith(b"\n") for batch in batches[:-1] for line in batch)
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


# --- interrupts -----------------------------------------------------------------------------------


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_waits_for_a_check_and_the_second_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        assert signal.getsignal(signal.SIGINT) is before
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_a_wait_also_when_it_came_before() -> None:
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.waiting():
        interrupt()
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupts.sleep(60.0)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            interrupt()
            interrupts.check()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# --- keys and values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"), [(".origin", ("origin",)), (".customer.id", ("customer", "id"))]
)
def test_a_field_path_starts_with_a_dot(text: str, path: tuple[str, ...]) -> None:
    assert parse_key_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "origin", "a.b", ".a.", "..a", ".a..b"])
def test_anything_else_is_no_field_path(text: str) -> None:
    with pytest.raises(ValueError, match="not a field path"):
        parse_key_path(text)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('{"k": "SFO"}', b"SFO"),
        ('{"k": ""}', b""),
        ('{"k": "\\u00e9"}', "é".encode()),
        ('{"k": "\\ud83d\\ude00"}', "😀".encode()),
        ('{"k": "\\\\ud800"}', rb"\ud800"),
        ('{"k": 1.50}', b"1.50"),
        ('{"k": 1e400}', b"1e400"),
        ('{"k": -7}', b"-7"),
        ('{"k": true}', b"true"),
        ('{"k": false}', b"false"),
    ],
)
def test_a_key_is_the_fields_text_as_written(value: str, key: bytes) -> None:
    assert Form(key_path=("k",)).records([value.encode()], json_check=True).keys == [key]


def test_a_key_may_lie_in_an_object() -> None:
    form = Form(key_path=("customer", "id"))

    assert form.records([b'{"customer": {"id": "c7"}}'], json_check=True).keys == [b"c7"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"k": "a"', r"is not JSON \(expecting ',' delimiter at character 10\)"),
        (b'{"k": NaN}', r"is not JSON \(NaN is not a JSON value\)"),
        (b'{"k": "\xff"}', r"is not JSON \(not UTF-8 at byte 8\)"),
        (b"[" * 100_000, r"is not JSON \(nested too deeply\)"),
        (b'{"other": 1}', "has no .k"),
        (b'{"k": null}', "has no .k"),
        (b'"text"', "has no .k"),
        (b"[1]", "has no .k"),
        (b'{"k": [1]}', "has no text or number in .k"),
        (b'{"k": {}}', "has no text or number in .k"),
        (b'{"k": "\\ud800"}', r"is not JSON \(.ud800 is half of a surrogate pair\)"),
        (b'{"k": "a", "x": "\\udE00\\ud83d"}', r"is not JSON \(.udE00 is half of a surrogate"),
    ],
)
def test_a_line_without_a_key_says_why(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        record_key(value, ["k"])


def test_records_end_before_the_first_bad_line() -> None:
    lines = [b'{"k":"a"}\r\n', b"\n", b"\r\n", b'{"k":"b"}\n', b'{"x":1}\n', b'{"k":"c"}']
    form = Form(key_path=("k",))

    assert form.records(lines, json_check=True) == (
        [b"a", b"b"],
        [b'{"k":"a"}', b'{"k":"b"}'],
        [0, 3],
        BadLine(4, "has no .k"),
    )
    assert form.records(lines[:4], json_check=True).bad_line is None


def test_the_first_separator_ends_the_key() -> None:
    form = Form(separator=b": ")

    assert form.records([b"a: b: c\n", b": \n", b"a:b"], json_check=False) == (
        [b"a", b""],
        [b"b: c", b""],
        [0, 1],
        BadLine(2, "has no separator ': ' behind its key"),
    )


def test_an_event_that_is_an_argument_is_taken_as_it_is() -> None:
    form = Form(key=b"k", is_lines=False)

    assert form.records([b"1\n", b""], json_check=False) == (
        [b"k"] * 2,
        [b"1\n", b""],
        [0, 1],
        None,
    )
    assert form.records([b""], json_check=True).bad_line == BadLine(
        0, "is not JSON (expecting value at character 1)"
    )


# --- requests -------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20)), st.integers(1, 40))
def test_requests_are_within_their_size_but_for_a_line_that_is_not(
    lines: list[bytes], bytes_max: int
) -> None:
    parts = list(cut(lines, bytes_max))

    assert [line for part in parts for line in part] == lines
    assert all(len(part) == 1 or sum(map(len, part)) <= bytes_max for part in parts)
    assert all(parts)


# --- times ----------------------------------------------------------------------------------------


def test_a_records_time_is_a_date_or_microseconds() -> None:
    assert record_time_us(str(INTEGER_US_MIN)) == INTEGER_US_MIN
    assert record_time_us("2001-01-01T00:00Z") == INTEGER_US_MIN
    assert record_time_us("1999-01-01T00:00Z") < INTEGER_US_MIN
