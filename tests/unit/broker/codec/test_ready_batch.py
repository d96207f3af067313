import struct

import lz4.block
import pytest
from zstandard import ZstdCompressor

from tailrace.wire import Codec, Flag
from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.codec.columns import EVENTS_MAX, PAYLOAD_BYTES_MAX, RECORD_HEADERS_MAX
from tailrace_broker.codec.ready_batch import parse_ready_batch
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError
from tests.support.storage.batches import Event, batch_of, body_of, forged_batch, place_of

SMALL = [Event(b"1", timestamp_us=7), Event(b"22", timestamp_us=9), Event(None, timestamp_us=8)]
LARGE = [Event(b"abcdefgh" * 100)]
HEADERS = [Event(b"1", headers=[(b"ab", b"x"), ("ä".encode(), b"")]), Event(b"2")]


def columns(*parts: bytes) -> bytes:
    """Parts, each filled up to a multiple of 8 bytes."""
    return b"".join(part + bytes(-len(part) % 8) for part in parts)


def int32s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def int64s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


# Of one record, without value and key.
OFFSETS = (int32s(0, 0), int32s(0, 0))
TIMES = int64s(5)


def refusal_of(body: bytes) -> str:
    with pytest.raises(InvalidBodyError) as refused:
        parse_ready_batch(body)
    return refused.value.detail


@pytest.mark.parametrize(
    "events", [SMALL, LARGE, HEADERS], ids=["nulls", "compressed", "with headers"]
)
def test_a_whole_batch_is_taken_as_it_is(events: list[Event]) -> None:
    assert parse_ready_batch(batch_of(events)) == body_of(events)


def test_a_body_in_any_buffer_is_taken() -> None:
    wanted = body_of(SMALL)

    assert parse_ready_batch(bytearray(batch_of(SMALL))) == wanted
    assert parse_ready_batch(memoryview(batch_of(SMALL))) == wanted


def test_the_times_are_taken_from_the_records() -> None:
    payload = columns(int32s(0, 0, 0), int32s(0, 0, 0), int64s(9, 4))

    body = parse_ready_batch(
        forged_batch(payload, record_count=2, first_timestamp_us=-1, largest_timestamp_us=2**62)
    )

    assert (body.first_timestamp_us, body.largest_timestamp_us) == (9, 9)


def test_what_only_a_broker_can_promise_is_not_believed() -> None:
    promised = Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS | Flag.NULL_VALUES
    payload = columns(*OFFSETS, TIMES, b"\0")

    body = parse_ready_batch(forged_batch(payload, flags=promised))

    assert body.flags == Flag.NULL_VALUES


def test_where_a_client_says_that_its_batch_lies_does_not_matter() -> None:
    place = {"base_offset": -5, "epoch": 9, "previous_epoch": 8, "partition": 77}

    assert parse_ready_batch(batch_of(SMALL, base_offset=70, epoch=3)) == body_of(SMALL)
    assert parse_ready_batch(forged_batch(columns(*OFFSETS, TIMES), **place)).record_count == 1


EMPTY = columns(*OFFSETS, TIMES)
HEADER_FLAG = {"flags": int(Flag.HEADERS)}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"", "too short for a batch header", id="empty"),
        pytest.param(b'{"a":1}' * 99, "magic is", id="no batch"),
        pytest.param(
            forged_batch(columns(*OFFSETS, TIMES), base_offset=2**63 - 1),
            "offset 9223372036854775807 is out of bounds",
            id="offsets beyond 64 bits",
        ),
        pytest.param(batch_of(SMALL)[:-1], "ends 1 bytes too late", id="cut short"),
        pytest.param(batch_of(SMALL) + bytes(16), "16 bytes follow it", id="something behind"),
        pytest.param(batch_of(SMALL) * 2, "bytes follow it", id="two batches"),
        pytest.param(forged_batch(EMPTY, version=2), "version 2", id="version"),
        pytest.param(forged_batch(EMPTY, codec=Codec.KAFKA_V2), "codec", id="codec"),
        pytest.param(forged_batch(EMPTY, record_count=0), "record count", id="no record"),
        pytest.param(forged_batch(EMPTY, flags=0x20), "flags 0x20 are not known", id="flags"),
        pytest.param(
            forged_batch(bytes(32) + EMPTY, producer_table_bytes=32, payload_bytes=len(EMPTY)),
            "has a producer table",
            id="producer table",
        ),
        pytest.param(forged_batch(EMPTY[:-1]), "ends behind its payload", id="few columns"),
        pytest.param(forged_batch(EMPTY + bytes(8)), "its payload 32", id="more columns"),
        pytest.param(
            forged_batch(EMPTY, uncompressed_bytes=32), "24 bytes inflated", id="another size"
        ),
        pytest.param(forged_batch(EMPTY, codec=Codec.LZ4), "LZ4 fails", id="not LZ4"),
        pytest.param(forged_batch(EMPTY, codec=Codec.ZSTD), "ZSTD fails", id="not zstd"),
        pytest.param(
            forged_batch(columns(int32s(0, -1), int32s(0, 0), TIMES)), "do not ascend", id="offsets"
        ),
        pytest.param(
            forged_batch(columns(int32s(0, 1), int32s(0, 0), TIMES) + b"a\0\0\0\0\0\0\1"),
            "fill behind a column is not zero",
            id="fill",
        ),
        pytest.param(
            forged_batch(columns(int32s(0, 1), int32s(0, 0), TIMES) + b"a"),
            "its columns are 32 bytes, its payload 25",
            id="no fill",
        ),
        pytest.param(
            forged_batch(EMPTY, flags=Flag.NULL_KEYS), "ends behind its payload", id="no bitmap"
        ),
        pytest.param(forged_batch(columns(*OFFSETS, int64s(-1))), "before 1970", id="time"),
        pytest.param(
            forged_batch(columns(*OFFSETS, TIMES, int32s(0, 1), int32s(0, 1)), **HEADER_FLAG),
            "ends behind its payload",
            id="headers cut short",
        ),
        pytest.param(
            forged_batch(
                columns(*OFFSETS, TIMES, int32s(0, 1), int32s(0, 1), int32s(0, 0), b"\xff"),
                **HEADER_FLAG,
            ),
            "header keys are not UTF-8",
            id="header key",
        ),
        pytest.param(
            forged_batch(
                columns(
                    *OFFSETS,
                    TIMES,
                    int32s(0, 2),
                    int32s(0, 1, 2),
                    int32s(0, 0, 0),
                    "ä".encode(),
                ),
                **HEADER_FLAG,
            ),
            "one ends within a character",
            id="header keys that share a character",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong(body: bytes, reason: str) -> None:
    assert reason in refusal_of(body)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        pytest.param(
            forged_batch(EMPTY, record_count=EVENTS_MAX + 1), f"{EVENTS_MAX} events", id="events"
        ),
        *(
            pytest.param(
                forged_batch(EMPTY, codec=codec, uncompressed_bytes=PAYLOAD_BYTES_MAX + 1),
                f"over {PAYLOAD_BYTES_MAX} bytes before compression",
                id=f"bytes of {codec.name}",
            )
            for codec in (Codec.LZ4, Codec.ZSTD)
        ),
        pytest.param(
            forged_batch(
                columns(*OFFSETS, TIMES, int32s(0, RECORD_HEADERS_MAX + 1)), **HEADER_FLAG
            ),
            f"{RECORD_HEADERS_MAX} record headers",
            id="record headers",
        ),
    ],
)
def test_what_would_take_too_much_memory_is_refused_before_it_does(
    batch: bytes, reason: str
) -> None:
    """The compressed block of the second and third is none: nobody looked at it."""
    with pytest.raises(BodyTooLargeError, match=reason):
        parse_ready_batch(batch)


def test_a_batch_that_inflates_to_more_than_it_says_is_refused() -> None:
    block = lz4.block.compress(bytes(1024 * 1024), store_size=False)
    frame = ZstdCompressor().compress(bytes(1024 * 1024))
    lies = {"uncompressed_bytes": 4096}

    assert "LZ4 fails" in refusal_of(forged_batch(block, codec=Codec.LZ4, **lies))
    assert "states 1048576 bytes, not 4096" in refusal_of(
        forged_batch(frame, codec=Codec.ZSTD, **lies)
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_a_batch_of_any_codec_is_stored_as_it_is(codec: Codec) -> None:
    events = [Event(b'{"origin":"SFO"}')] * 30
    body = body_of(events, codec=codec)

    stored = parse_ready_batch(b"".join(stamp_batch(body, place_of()).buffers))

    assert stored == body
    assert stored.codec == codec
