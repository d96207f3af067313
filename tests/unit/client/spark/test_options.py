import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.spark.option_values import EARLIEST, LATEST, Bound, InvalidOptionError
from tailrace.spark.options import (
    NAMES_BY_READ,
    Read,
    ReadOptions,
    parse_read_options,
    parse_write_options,
)

URL = "http://127.0.0.1:9250"
REQUIRED = {"bootstrap.servers": URL, "subscribe": "flights"}
DOCUMENT = Path(__file__).parents[4] / "docs" / "spark.md"
COLUMNS = {"key": "binary", "value": "binary"}


def options_of(read: Read = Read.BATCH, /, **given: str) -> ReadOptions:
    return parse_read_options({**REQUIRED, **given}, read)


def refusal_of(given: dict[str, str], read: Read = Read.BATCH) -> str:
    with pytest.raises(InvalidOptionError) as refusal:
        parse_read_options(given, read)
    return str(refusal.value)


def test_defaults_read_a_whole_topic() -> None:
    options = options_of()

    assert options.urls == (URL,)
    assert options.partitions_by_topic == {"flights": None}
    assert options.starting == Bound("startingOffsets", EARLIEST)
    assert options.ending == Bound("endingOffsets", LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.filter_pushdown
    assert options.fetch_bytes_max == 4 * 1024 * 1024
    assert options.coalesce_rows == 20_000
    assert (options.retry_count, options.retry_interval_s) == (10, 0.5)


def test_a_stream_starts_at_the_latest_and_has_no_limit() -> None:
    options = options_of(Read.STREAM)

    assert options.starting == Bound("startingOffsets", LATEST)
    assert options.trigger_records_max is None
    assert options.trigger_records_min is None
    assert options.trigger_delay_s_max == 15 * 60
    assert options.group_id is None


def test_names_are_taken_in_the_lower_case_that_spark_makes_of_them() -> None:
    given = {
        "url": URL,
        "subscribePattern": "f.*",
        "startingOffsets": '{"flights":{"0":1}}',
        "endingOffsets": '{"flights":{"0":9}}',
        "minPartitions": "3",
        "maxRecordsPerPartition": "5",
        "failOnDataLoss": "FALSE",
        "includeHeaders": "True",
        "fetchMaxBytes": "1000",
        "coalesceRows": " 7 ",
        "filterPushdown": "true",
        "fetchOffset.numRetries": "0",
        "fetchOffset.retryIntervalMs": "20",
    }
    options = parse_read_options({name.lower(): given[name] for name in given}, Read.BATCH)

    assert options == parse_read_options(given, Read.BATCH)
    assert options.topic_pattern == "f.*"
    assert options.starting == Bound("startingOffsets", by_partition={"flights": {0: 1}})
    assert options.ending == Bound("endingOffsets", by_partition={"flights": {0: 9}})
    assert (options.partition_count_min, options.partition_records_max) == (3, 5)
    assert (options.fail_on_data_loss, options.include_headers) == (False, True)
    assert (options.fetch_bytes_max, options.coalesce_rows) == (1000, 7)
    assert (options.retry_count, options.retry_interval_s) == (0, 0.02)
    assert options.filter_pushdown


def test_options_of_a_stream_bound_its_batches() -> None:
    options = options_of(
        Read.STREAM, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="4", maxTriggerDelay="30s"
    )

    assert (options.trigger_records_max, options.trigger_records_min) == (10, 4)
    assert options.trigger_delay_s_max == 30


def test_a_stream_may_have_a_group_under_which_its_lag_shows() -> None:
    assert options_of(Read.STREAM, groupId="spark:delays").group_id == "spark:delays"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\x01", "x" * 250])
def test_a_groups_name_is_visible(name: str) -> None:
    refusal = refusal_of({**REQUIRED, "groupId": name}, Read.STREAM)

    assert refusal.startswith("groupId must be 1 to 249 visible characters, none of them /")


@pytest.mark.parametrize(
    ("text", "seconds"), [("250", 0.25), ("500ms", 0.5), ("15M", 900), ("2 h", 7200), ("1d", 86400)]
)
def test_a_delay_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert options_of(Read.STREAM, maxTriggerDelay=text).trigger_delay_s_max == seconds


def test_a_stream_may_name_the_latest_of_a_partition() -> None:
    starting = options_of(Read.STREAM, startingOffsets='{"flights":{"0":-1,"1":-2}}').starting

    assert (starting.of("flights", 0), starting.of("flights", 1)) == (LATEST, EARLIEST)
    assert starting.of("flights", 2) is None


def test_times_count_more_than_offsets_and_one_for_all_the_most() -> None:
    offsets = {"startingOffsets": '{"flights":{"0":1}}', "endingOffsets": '{"flights":{"0":9}}'}
    by_partition = {
        "startingOffsetsByTimestamp": '{"flights":{"0":1000}}',
        "endingOffsetsByTimestamp": '{"flights":{"0":2000}}',
    }
    all_times = {"startingTimestamp": "3000", "endingTimestamp": "4000"}

    some = options_of(**offsets, **by_partition)
    every = options_of(**offsets, **by_partition, **all_times)

    assert some.starting.of("flights", 0) == 1_000_000
    assert some.ending.of("flights", 0) == 2_000_000
    assert some.starting.is_time
    assert some.ending.is_time
    assert every.starting == Bound("startingTimestamp", 3_000_000, is_time=True)
    assert every.ending == Bound("endingTimestamp", 4_000_000, is_time=True)


@pytest.mark.parametrize(("given", "expected"), [({}, False), ({"strategy": "Latest"}, True)])
def test_a_strategy_says_what_is_done_without_a_record_so_late(
    given: dict[str, str], expected: bool
) -> None:
    named = {"startingOffsetsByTimestampStrategy": given["strategy"]} if given else {}

    assert options_of(**named).starts_latest_without_match is expected


@pytest.mark.parametrize("read", [Read.BATCH, Read.STREAM])
def test_the_documentation_describes_every_option_and_of_what_it_is_one(read: Read) -> None:
    _, _, section = DOCUMENT.read_text().partition("## Options of reads\n")
    rows = re.findall(r"^\| (`.*?) \|.*?\| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    other = {Read.BATCH: "stream only.", Read.STREAM: "batch only."}[read]

    reported = [
        name for names, text in rows if not text.startswith(other) for name in names.split("`")
    ]

    assert sorted(name for name in reported if name.strip(" ,or")) == sorted(NAMES_BY_READ[read])


def test_options_travel_to_executors() -> None:
    options = options_of(startingOffsets='{"flights":{"0":1}}')

    assert pickle.loads(pickle.dumps(options)) == options


def test_several_brokers_may_be_named() -> None:
    options = parse_read_options(
        {"url": f"{URL}, http://127.0.0.1:9260", "subscribe": "a , b,"}, Read.BATCH
    )

    assert options.urls == (URL, "http://127.0.0.1:9260")
    assert options.partitions_by_topic == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("selection", "selected", "not_selected"),
    [
        ({"subscribe": "a,b"}, [("a", 0), ("b", 7)], [("c", 0), ("ab", 0)]),
        ({"assign": '{"a":[0,2]}'}, [("a", 0), ("a", 2)], [("a", 1), ("b", 0)]),
        ({"subscribePattern": "a|b.*"}, [("a", 0), ("bc", 1)], [("ab", 0), ("xb", 0)]),
    ],
)
def test_each_selection_selects_its_partitions(
    selection: dict[str, str],
    selected: list[tuple[str, int]],
    not_selected: list[tuple[str, int]],
) -> None:
    options = parse_read_options({"url": URL, **selection}, Read.BATCH)

    assert all(options.selects(*partition) for partition in selected)
    assert not any(options.selects(*partition) for partition in not_selected)


@pytest.mark.parametrize(
    ("read", "name", "hint"),
    [
        (Read.BATCH, "minpartition", "did you mean minPartitions?"),
        (Read.BATCH, "kafka.bootstrap.servers", "did you mean bootstrap.servers?"),
        (Read.BATCH, "kafka.group.id", "take it away. Its options: bootstrap.servers, url,"),
        (Read.BATCH, "maxOffsetsPerTrigger", "a batch read has no option"),
        (Read.BATCH, "groupId", "a batch read has no option"),
        (Read.STREAM, "endingOffsets", "a streaming read has no option"),
        (Read.STREAM, "filterPushdown", "a streaming read has no option"),
        (Read.ANY, "endingTimestamps", "did you mean endingTimestamp?"),
    ],
)
def test_an_unknown_option_is_refused_by_name_with_a_remedy(
    read: Read, name: str, hint: str
) -> None:
    refusal = refusal_of({**REQUIRED, name: "1"}, read)

    assert f'no option "{name}"' in refusal
    assert hint in refusal


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"subscribe": "a"}, "give one of bootstrap.servers or url"),
        ({"url": "http://a", "bootstrap.servers": "http://b", "subscribe": "a"}, "give one of"),
        ({"url": "localhost:", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        ({"url": "http://", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        ({"url": "http://a:99999", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        ({"url": "http://[::1", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        (
            {"url": "https://a:1, b", "subscribe": "a"},
            "plain http, since Spark connects without TLS: http://a:1,http://b:9250; it is 'https",
        ),
        ({"url": "", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        ({"url": URL}, "exactly one of subscribe, assign, subscribePattern"),
        ({"url": URL, "subscribe": "a", "subscribePattern": "a"}, "exactly one of"),
        ({"url": URL, "subscribe": " , "}, "subscribe must be topics like a,b; it is ','"),
        ({"url": URL, "subscribePattern": "a("}, 'subscribePattern "a("'),
        ({"url": URL, "assign": "a"}, "assign must be JSON"),
        ({"url": URL, "assign": "[0]"}, "assign must be JSON"),
        ({"url": URL, "assign": "{}"}, "assign must be JSON"),
        ({"url": URL, "assign": '{"a":0}'}, "assign must be JSON"),
        ({"url": URL, "assign": '{"a":[]}'}, "assign must be JSON"),
        ({"url": URL, "assign": '{"a":["0"]}'}, "assign must be JSON"),
        ({**REQUIRED, "startingOffsets": "latest"}, "startingOffsets must be earliest, or JSON"),
        ({**REQUIRED, "startingOffsets": '{"flights":{"0":-1}}'}, "without -1"),
        ({**REQUIRED, "startingOffsets": '{"flights":{"0":-3}}'}, "startingOffsets must be"),
        ({**REQUIRED, "startingOffsets": '{"flights":{"0":true}}'}, "startingOffsets must be"),
        ({**REQUIRED, "startingOffsets": '{"flights":{"x":1}}'}, "startingOffsets must be"),
        ({**REQUIRED, "startingOffsets": '{"flights":[1]}'}, "startingOffsets must be"),
        ({**REQUIRED, "startingOffsets": "{"}, "startingOffsets must be"),
        (
            {**REQUIRED, "startingOffsets": '{"other":{"0":1}}'},
            "startingOffsets names other/0, which none of subscribe, assign, subscribePattern",
        ),
        ({**REQUIRED, "endingOffsets": "earliest"}, "endingOffsets must be latest, or JSON"),
        ({**REQUIRED, "endingOffsets": '{"flights":{"0":-2}}'}, "without -2"),
        ({**REQUIRED, "endingOffsets": '{"other":{"0":1}}'}, "endingOffsets names other/0"),
        ({**REQUIRED, "startingTimestamp": "2026-11-21"}, "startingTimestamp must be a whole"),
        ({**REQUIRED, "startingTimestamp": "9223372036854776"}, "startingTimestamp must be"),
        ({**REQUIRED, "endingTimestamp": "-1"}, "endingTimestamp must be a whole number from 0"),
        (
            {**REQUIRED, "startingOffsetsByTimestamp": '{"flights":{"0":-1}}'},
            "in milliseconds since the epoch",
        ),
        (
            {**REQUIRED, "endingOffsetsByTimestamp": '{"other":{"0":1}}'},
            "endingOffsetsByTimestamp names other/0",
        ),
        (
            {**REQUIRED, "startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy must be error or latest",
        ),
        ({**REQUIRED, "minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        ({**REQUIRED, "maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be"),
        ({**REQUIRED, "fetchMaxBytes": str(64 * 1024 * 1024 + 1)}, "from 1 to 16777216"),
        ({**REQUIRED, "coalesceRows": "many"}, "coalesceRows must be a whole number"),
        ({**REQUIRED, "failOnDataLoss": "no"}, "failOnDataLoss must be true or false; it is 'no'"),
        ({**REQUIRED, "includeHeaders": ""}, "includeHeaders must be true or false"),
        ({**REQUIRED, "fetchOffset.numRetries": "1001"}, "from 0 to 1000"),
    ],
)
def test_a_bad_value_is_refused_with_what_to_write(given: dict[str, str], reason: str) -> None:
    assert reason in refusal_of(given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"startingOffsets": "first"}, "startingOffsets must be earliest or latest, or JSON"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number from 1"),
        ({"maxTriggerDelay": "15 years"}, "maxTriggerDelay must be a time like 500ms"),
    ],
)
def test_a_bad_value_of_a_stream_is_refused(given: dict[str, str], reason: str) -> None:
    assert reason in refusal_of({**REQUIRED, **given}, Read.STREAM)


def test_json_offsets_may_only_name_assigned_partitions() -> None:
    given = {"url": URL, "assign": '{"a":[0]}', "startingOffsets": '{"a":{"0":5,"1":5}}'}

    assert "startingOffsets names a/1" in refusal_of(given)


@given(
    st.sampled_from(["assign", "startingOffsets", "minPartitions"]),
    st.text() | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps),
)
def test_a_text_that_cannot_be_meant_is_refused_and_breaks_nothing(name: str, text: str) -> None:
    assume(text.strip().lower() != "earliest" and not text.strip().isdecimal())
    given = {"url": URL, name: text} if name == "assign" else {**REQUIRED, name: text}

    assert refusal_of(given).startswith(f"{name} must be")


def test_a_write_needs_brokers_and_a_topic() -> None:
    named = parse_write_options({"url": URL, "TOPIC": "copy"}, COLUMNS)
    by_row = parse_write_options({"url": URL}, {**COLUMNS, "topic": "string"})

    assert (named.urls, named.topic) == ((URL,), "copy")
    assert by_row.topic is None


@pytest.mark.parametrize(
    ("given", "columns", "reason"),
    [
        ({}, COLUMNS, "name the topic to write to: option topic, or a column topic"),
        ({"topic": ""}, COLUMNS, "topic must be a topic's name"),
        ({"subscribe": "a"}, COLUMNS, 'a write has no option "subscribe"'),
        ({"topic": "a"}, {"key": "string"}, "a write needs a column value; there are key"),
        (
            {"topic": "a"},
            {**COLUMNS, "partition": "int"},
            'column "partition" cannot be written; the key decides the partition: '
            "select key, value, topic, headers, timestamp or some of them first",
        ),
        ({"topic": "a"}, {**COLUMNS, "offset": "bigint"}, 'column "offset" cannot be written: '),
        ({"topic": "a"}, {"value": "int"}, 'column "value" is int: cast it to binary or string'),
    ],
)
def test_what_cannot_be_written_is_refused(
    given: dict[str, str], columns: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        parse_write_options({"url": URL, **given}, columns)

    assert reason in str(refusal.value)
