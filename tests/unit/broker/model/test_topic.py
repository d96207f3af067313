from typing import Any
from uuid import UUID

import msgspec
import pytest

from tailrace.wire import Codec
from tailrace_broker.model.errors import (
    InvalidParameterError,
    InvalidTopicNameError,
    PartitionNotFoundError,
)
from tailrace_broker.model.topic import (
    NEW_TOPIC,
    Partition,
    Slice,
    Topic,
    TopicSettings,
    check_topic_name,
    slices_of,
)
from tests.support.storage.batches import SPLIT_TOPIC

INT64_MAX = 2**63 - 1


def settings_with(field: str, value: object) -> TopicSettings:
    changes: dict[str, Any] = {field: value}
    return msgspec.structs.replace(NEW_TOPIC, **changes)


@pytest.mark.parametrize("name", ["a", "Flights-2026_v1.raw", "_one", "...", "-", "x" * 249])
def test_a_name_by_the_rule_is_taken(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "__groups", "__", "x" * 250, "a/b", "a b", "zürich", "a\n", "a\0", "%2e"],
)
def test_a_name_that_breaks_the_rule_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidTopicNameError) as refused:
        check_topic_name(name)

    assert refused.value.members == {"topic": name}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("partitions_per_range", [1, 256]),
        ("flush_ms", [1, 3_600_000]),
        ("flush_bytes", [4096, INT64_MAX]),
        ("linger_ms", [0, 60_000]),
        ("linger_bytes", [0, 16 * 1024 * 1024]),
        ("retention_ms", [60_000, INT64_MAX, None]),
        ("retention_bytes", [1024 * 1024, INT64_MAX, None]),
        ("compression", ["lz4", "zstd", "none"]),
        ("durability", ["fsync", "written"]),
    ],
)
def test_a_setting_can_be_anything_inside_its_bounds(field: str, values: list[object]) -> None:
    assert [getattr(settings_with(field, value), field) for value in values] == values


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("partitions_per_range", 0, "partitionsPerRange is 0; it can be 1 to 256"),
        ("partitions_per_range", 257, "partitionsPerRange is 257; it can be 1 to 256"),
        ("flush_ms", 0, "flushMs is 0; it can be 1 to 3600000"),
        ("flush_ms", 3_600_001, "flushMs is 3600001; it can be 1 to 3600000"),
        ("flush_bytes", 4095, f"flushBytes is 4095; it can be 4096 to {INT64_MAX}"),
        ("linger_ms", -1, "lingerMs is -1; it can be 0 to 60000"),
        ("linger_ms", 60_001, "lingerMs is 60001; it can be 0 to 60000"),
        ("linger_bytes", 16_777_217, "lingerBytes is 16777217; it can be 0 to 16777216"),
        (
            "retention_ms",
            -1,
            f"retentionMs is -1; it can be 60000 to {INT64_MAX}, or null, which keeps records "
            "for ever",
        ),
        (
            "retention_bytes",
            1_048_575,
            f"retentionBytes is 1048575; it can be 1048576 to {INT64_MAX}, or null, which keeps "
            "records for ever",
        ),
        ("retention_ms", INT64_MAX + 1, f"retentionMs is {INT64_MAX + 1}; it can be 60000 to"),
        ("compression", "gzip", 'compression is "gzip"; it can be lz4 or zstd or none'),
        ("durability", "Fsync", 'durability is "Fsync"; it can be fsync or written'),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_in_one_sentence(
    field: str, value: object, sentence: str
) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        settings_with(field, value)

    assert refused.value.detail.startswith(sentence)
    assert refused.value.members == {"parameter": sentence.partition(" ")[0]}


def test_a_new_topic_keeps_its_records_for_a_week_and_an_old_one_for_ever() -> None:
    assert NEW_TOPIC.retention_ms == 7 * 24 * 3_600_000
    assert msgspec.json.decode(b"{}", type=TopicSettings).retention_ms is None
    assert msgspec.structs.replace(NEW_TOPIC, retention_ms=None) == TopicSettings()


def test_each_compression_is_a_codec_of_batches() -> None:
    codecs = {word: settings_with("compression", word).codec for word in ("lz4", "zstd", "none")}

    assert codecs == {"lz4": Codec.LZ4, "zstd": Codec.ZSTD, "none": Codec.NONE}


def test_the_slices_of_a_range_are_numbered_by_their_tokens() -> None:
    """Partitions 3 to 5 slice the upper of two ranges; their ids are in no order of tokens."""
    parts = SPLIT_TOPIC.partitions
    upper = [
        msgspec.structs.replace(parts[1], partition=partition, token_start=token_start)
        for partition, token_start in ((3, 2**62), (4, 2**61), (5, 5))
    ]
    topic = msgspec.structs.replace(SPLIT_TOPIC, partitions=(parts[0], parts[2], *upper))

    assert slices_of(topic) == {
        0: Slice(-(2**63), 0, 1),
        2: Slice(-(2**63), 0, 1),
        3: Slice(5, 2, 3),
        4: Slice(5, 1, 3),
        5: Slice(5, 0, 3),
    }


@pytest.mark.parametrize(
    ("there", "asked", "detail"),
    [
        ((), 0, 'topic "t" has no partitions until the open step of the ring is over'),
        ((1, 3), 2, 'partition 2 of topic "t" is gone: the ring grew or shrank'),
        ((1, 3), 0, 'partition 0 of topic "t" is gone'),
        ((1, 3), 4, 'topic "t" has partitions 1 to 3'),
    ],
)
def test_what_is_no_partition_is_refused_with_those_there_are(
    there: tuple[int, ...], asked: int, detail: str
) -> None:
    partitions = tuple(Partition(each, 0, 1, 0, 1) for each in there)
    with pytest.raises(PartitionNotFoundError, match=detail):
        Topic("t", UUID(int=1), TopicSettings(), partitions).at(asked)
