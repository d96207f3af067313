import re
from uuid import UUID

import pytest
from msgspec import structs

from tailrace_broker.codec.metadata import (
    CleanStop,
    DeletionMark,
    DiskIdentity,
    KnownFiles,
    LogStart,
    decode_clean_stop,
    decode_deleted,
    decode_identity,
    decode_inventory,
    decode_log_start,
    encode_clean_stop,
    encode_deleted,
    encode_identity,
    encode_inventory,
    encode_log_start,
)
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.ring_state import Start
from tailrace_broker.model.topic import Topic, TopicSettings
from tests.support.storage.batches import SPLIT_TOPIC
from tests.support.storage.topics import new_topic

IDENTITY = DiskIdentity(
    UUID(int=1),
    ordinal=2,
    incarnation=UUID(int=2),
    boot=7,
    kernel_boot_id="4f2c",
    starts=(Start(UUID(int=8), "clean"), Start(UUID(int=9), "power")),
)
TOPICS = [
    new_topic("flights", TopicSettings(), UUID(int=3)),
    new_topic("orders", TopicSettings(partitions_per_range=256, json_check=False), UUID(int=4)),
    SPLIT_TOPIC,
]
DELETED = DeletionMark(TOPICS[0], deleted_us=5)
CLEAN_STOP = CleanStop(boot=7, log_ends={UUID(int=3): [5, None, 0], UUID(int=4): []})
INVENTORY = KnownFiles(("1.journal", "2.journal"), {UUID(int=3): {0: 0, 2: 17}})
LOG_START = LogStart(
    log_start=2**40, first_segment=2**39, epoch_before=3, append_time_before_us=2**50
)


@pytest.mark.parametrize("cluster_id", [UUID(int=1), None])
def test_the_identity_of_a_disk_comes_back(cluster_id: UUID | None) -> None:
    identity = structs.replace(IDENTITY, cluster_id=cluster_id)

    assert decode_identity(encode_identity(identity)) == identity


@pytest.mark.parametrize("topic", TOPICS, ids=[each.name for each in TOPICS])
def test_what_a_deleted_topic_was_comes_back(topic: Topic) -> None:
    deleted = DeletionMark(topic, deleted_us=5)

    assert decode_deleted(encode_deleted(deleted)) == deleted


def test_where_the_logs_ended_comes_back() -> None:
    assert decode_clean_stop(encode_clean_stop(CLEAN_STOP)) == CLEAN_STOP


def test_where_a_log_starts_comes_back() -> None:
    assert decode_log_start(encode_log_start(LOG_START)) == LOG_START


def test_what_must_be_on_the_disk_comes_back() -> None:
    assert decode_inventory(encode_inventory(INVENTORY)) == INVENTORY
    assert decode_inventory(b'{"version":1}') == KnownFiles()


def test_a_field_that_is_not_known_is_passed_over() -> None:
    stored = encode_identity(IDENTITY).replace(b'"ordinal"', b'"added": [1], "ordinal"')

    assert decode_identity(stored) == IDENTITY


@pytest.mark.parametrize("version", [0, 3, 5])
def test_a_file_of_another_version_is_refused(version: int) -> None:
    def with_version(stored: bytes) -> bytes:
        return re.sub(rb'"version": ?[1234]', b'"version": %d' % version, stored)

    with pytest.raises(CorruptMetadataError, match=f"meta.json: format version {version}; .* 4"):
        decode_identity(with_version(encode_identity(IDENTITY)))
    with pytest.raises(CorruptMetadataError, match=f"topic.json: format version {version}"):
        decode_deleted(with_version(encode_deleted(DELETED)))
    with pytest.raises(CorruptMetadataError, match=f"clean-stop.json: format version {version}"):
        decode_clean_stop(with_version(encode_clean_stop(CLEAN_STOP)))
    with pytest.raises(CorruptMetadataError, match=f"inventory.json: format version {version}"):
        decode_inventory(with_version(encode_inventory(INVENTORY)))
    with pytest.raises(CorruptMetadataError, match=f"log-start.json: format version {version}"):
        decode_log_start(with_version(encode_log_start(LOG_START)))


@pytest.mark.parametrize("first_segment", [-1, 8])
def test_a_log_that_starts_outside_of_its_segments_is_refused(first_segment: int) -> None:
    stored = encode_log_start(LogStart(7, 0, 1, 2))
    changed = stored.replace(b'"firstSegment":0', b'"firstSegment":%d' % first_segment)
    assert changed != stored
    with pytest.raises(CorruptMetadataError, match=r"log-start.json cannot be read: firstSegment"):
        decode_log_start(changed)


def test_every_truncation_is_refused() -> None:
    for stored, decode in (
        (encode_identity(IDENTITY).rstrip(), decode_identity),
        (encode_deleted(DELETED).rstrip(), decode_deleted),
        (encode_clean_stop(CLEAN_STOP).rstrip(), decode_clean_stop),
        (encode_log_start(LOG_START).rstrip(), decode_log_start),
        (encode_inventory(INVENTORY).rstrip(), decode_inventory),
    ):
        for size_bytes in range(len(stored)):
            with pytest.raises(CorruptMetadataError):
                decode(stored[:size_bytes])


@pytest.mark.parametrize(
    ("found", "damaged"),
    [
        pytest.param(b'"flights"', b'"fl\xffghts"', id="not UTF-8"),
        pytest.param(b'"flights"', b"5", id="another type"),
        pytest.param(b'"partitionsPerRange": 4', b'"partitionsPerRange": 0', id="out of bounds"),
        pytest.param(b'"partitions": [', b'"partitions": [' + b"[" * 9999, id="another shape"),
        pytest.param(b'"topic"', b'"added": ' + b"[" * 9999 + b', "topic"', id="nested deeply"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(found: bytes, damaged: bytes) -> None:
    stored = encode_deleted(DELETED)
    assert found in stored

    with pytest.raises(CorruptMetadataError, match=r"topic\.json cannot be read"):
        decode_deleted(stored.replace(found, damaged, 1))
