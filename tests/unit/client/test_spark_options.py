import json
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.spark.options import InvalidOptionError, ReadOptions, parse_options

URL = "http://127.0.0.1:9250"
REQUIRED = {"bootstrap.servers": URL, "subscribe": "flights"}


def options_of(**given: str) -> ReadOptions:
    return parse_options({**REQUIRED, **given})


def refusal_of(given: dict[str, str]) -> str:
    with pytest.raises(InvalidOptionError) as refusal:
        parse_options(given)
    return str(refusal.value)


def test_defaults_read_a_whole_topic() -> None:
    options = parse_options(REQUIRED)

    assert options.urls == (URL,)
    assert options.partitions_by_topic == {"flights": None}
    assert options.starting_offsets is None
    assert options.ending_offsets is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.fetch_bytes_max == 4 * 1024 * 1024
    assert options.coalesce_rows == 20_000


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
    }
    options = parse_options({name.lower(): value for name, value in given.items()})

    assert options == parse_options(given)
    assert options.topic_pattern == "f.*"
    assert options.starting_offsets == {"flights": {0: 1}}
    assert options.ending_offsets == {"flights": {0: 9}}
    assert (options.partition_count_min, options.partition_records_max) == (3, 5)
    assert (options.fail_on_data_loss, options.include_headers) == (False, True)
    assert (options.fetch_bytes_max, options.coalesce_rows) == (1000, 7)


def test_options_travel_to_executors() -> None:
    options = options_of(startingOffsets='{"flights":{"0":1}}')

    assert pickle.loads(pickle.dumps(options)) == options


def test_several_brokers_may_be_named() -> None:
    options = parse_options({"url": f"{URL}, http://127.0.0.1:9260", "subscribe": "a , b,"})

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
    options = parse_options({"url": URL, **selection})

    assert all(options.selects(*partition) for partition in selected)
    assert not any(options.selects(*partition) for partition in not_selected)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("minpartition", "did you mean minPartitions?"),
        ("kafka.bootstrap.servers", "did you mean bootstrap.servers?"),
        ("topic", "take it away. Its options: bootstrap.servers, url, subscribe,"),
        ("maxOffsetsPerTrigger", "Its options:"),
        ("startingTimestamp", "did you mean startingOffsets?"),
    ],
)
def test_an_unknown_option_is_refused_by_name_with_a_remedy(name: str, hint: str) -> None:
    refusal = refusal_of({**REQUIRED, name: "1"})

    assert f'no option "{name}"' in refusal
    assert hint in refusal


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"subscribe": "a"}, "give one of bootstrap.servers or url"),
        ({"url": "http://a", "bootstrap.servers": "http://b"}, "give one of"),
        ({"url": "localhost:9250", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        ({"url": "", "subscribe": "a"}, "a URL like http://127.0.0.1:9250"),
        ({"url": URL}, "exactly one of subscribe, assign, subscribePattern"),
        ({"url": URL, "subscribe": "a", "subscribePattern": "a"}, "exactly one of"),
        ({"url": URL, "subscribe": " , "}, "subscribe must be topics like a,b; it is ','"),
        ({"url": URL, "subscribePattern": "a("}, 'subscribePattern "a("'),
        ({"url": URL, "assign": "a"}, "assign must be JSON"),
        ({"url": URL, "assign": "[0]"}, "assign must be JSON"),
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
        ({**REQUIRED, "startingOffsets": '{"other":{"0":1}}'}, "names other/0, which none of"),
        ({**REQUIRED, "endingOffsets": "earliest"}, "endingOffsets must be latest, or JSON"),
        ({**REQUIRED, "endingOffsets": '{"flights":{"0":-2}}'}, "without -2"),
        ({**REQUIRED, "endingOffsets": '{"other":{"0":1}}'}, "endingOffsets names other/0"),
        ({**REQUIRED, "minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        ({**REQUIRED, "maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be"),
        ({**REQUIRED, "fetchMaxBytes": str(64 * 1024 * 1024 + 1)}, "from 1 to 16777216"),
        ({**REQUIRED, "coalesceRows": "many"}, "coalesceRows must be a whole number"),
        ({**REQUIRED, "failOnDataLoss": "no"}, "failOnDataLoss must be true or false; it is 'no'"),
        ({**REQUIRED, "includeHeaders": ""}, "includeHeaders must be true or false"),
    ],
)
def test_a_bad_value_is_refused_with_what_to_write(given: dict[str, str], reason: str) -> None:
    assert reason in refusal_of(given)


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
