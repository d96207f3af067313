"""The parts of produce that can be measured alone: the codec and the JSON check.

The same calls as the broker's, on the same events in the same batches, in the same run: a noisy
machine then moves the part and the whole together. What is left of the broker's CPU is its own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.events import Event
from benchmarks.report import GIB
from tailrace.wire import Codec
from tailrace_broker.codec.batch import compress_columns
from tailrace_broker.codec.columns import RecordColumns, column_of_values, pack_columns
from tailrace_broker.codec.ndjson import check_json, split_lines

MEASURED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Parts:
    """CPU seconds per GiB of event bytes, and payload bytes per compressed byte."""

    codec_s_per_gib: float
    codec_ratio: float
    json_check_s_per_gib: float


def parts_of_single_events(events: Sequence[Event], batch_event_count: int) -> Parts:
    """Of events checked one by one and compressed `batch_event_count` at a time."""
    codec_s_per_gib, codec_ratio = _codec(events, batch_event_count, Codec.LZ4)

    def check() -> None:
        for event in events:
            check_json(event.value)

    return Parts(codec_s_per_gib, codec_ratio, _cpu_s_per_gib(check, _event_bytes(events)))


def parts_of_ndjson(events: Sequence[Event], request_event_count: int, codec: Codec) -> Parts:
    """Of NDJSON requests that become one batch each."""
    codec_s_per_gib, codec_ratio = _codec(events, request_event_count, codec)
    bodies = [ndjson_body(group) for group in groups_of(events, request_event_count)]

    def split() -> None:
        for body in bodies:
            split_lines(body, json_check=False)

    def check() -> None:
        for body in bodies:
            split_lines(body, json_check=True)

    event_bytes = _event_bytes(events)
    check_s_per_gib = _cpu_s_per_gib(check, event_bytes) - _cpu_s_per_gib(split, event_bytes)
    return Parts(codec_s_per_gib, codec_ratio, check_s_per_gib)


def ndjson_body(events: Sequence[Event]) -> bytes:
    """One event a line."""
    return b"".join(event.value + b"\n" for event in events)


def columns_of(events: Sequence[Event]) -> RecordColumns:
    """A batch before compression."""
    values = column_of_values([event.value for event in events])
    keys = column_of_values([event.key.encode() for event in events])
    return pack_columns(values, keys, np.zeros(len(events), np.int64))


def groups_of(events: Sequence[Event], count: int) -> list[Sequence[Event]]:
    """The events in order, `count` at a time."""
    return [events[start : start + count] for start in range(0, len(events), count)]


def _codec(events: Sequence[Event], batch_event_count: int, codec: Codec) -> tuple[float, float]:
    """CPU s/GiB with the payload's checksum, and the ratio."""
    batches = [columns_of(group) for group in groups_of(events, batch_event_count)]
    stored_bytes = sum(len(compress_columns(batch, codec=codec).payload) for batch in batches)

    def compress() -> None:
        for batch in batches:
            compress_columns(batch, codec=codec)

    cpu_s_per_gib = _cpu_s_per_gib(compress, _event_bytes(events))
    return cpu_s_per_gib, sum(len(batch.payload) for batch in batches) / stored_bytes


def _cpu_s_per_gib(work: Callable[[], None], event_bytes: int) -> float:
    """CPU time of `work`, which handles `event_bytes`, repeated until noise has averaged out."""
    repeat_count = -(-MEASURED_BYTES // event_bytes)
    start_s = time.thread_time()
    for _ in range(repeat_count):
        work()
    return (time.thread_time() - start_s) / (repeat_count * event_bytes) * GIB


def _event_bytes(events: Sequence[Event]) -> int:
    return sum(len(event.value) for event in events)
