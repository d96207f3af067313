"""`tailrace produce` as a user runs it: live pipes, events as arguments, keys, headers, times."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.sync import Client
from tailrace.wire import LARGEST_REQUEST_BYTES
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.cli.commands import (
    TAILRACE,
    TIMEOUT_S,
    assert_fails,
    environment,
    ndjson,
    records_of,
    reported,
    run,
    started,
    values_of,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all tests of this file."""
    with start_broker(tmp_path_factory.mktemp("produce"), max_request_bytes=100_000) as running:
        yield running


@pytest.fixture
def topic(broker: RunningBroker, tmp_path: Path) -> str:
    """An empty one of this test alone."""
    with Client(broker.url) as client:
        client.create_topic(tmp_path.name)
    return tmp_path.name


def count_of(broker: RunningBroker, topic: str) -> int:
    with Client(broker.url) as client:
        return sum(len(row.readable()) for row in client.offsets([topic]))


def wait_for(broker: RunningBroker, topic: str, count: int) -> None:
    while count_of(broker, topic) < count:
        pass


def write(process: "subprocess.Popen[bytes]", content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


# --- a pipe whose writer pauses -------------------------------------------------------------------


def test_each_line_of_a_live_pipe_is_stored_while_its_writer_waits(
    broker: RunningBroker, topic: str
) -> None:
    with started("produce", topic, url=broker.url) as process:
        for number in range(1, 4):
            write(process, b'{"n":%d}\n' % number)
            wait_for(broker, topic, number)
        output, errors = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, errors) == (0, b"")
    assert output.decode().startswith("✓ 3 events, 24 bytes, ")
    assert values_of(run("consume", topic, url=broker.url)) == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_of_a_live_pipe_stores_the_whole_lines_and_counts_the_rest(
    broker: RunningBroker, topic: str, number: int, exit_code: int
) -> None:
    with started("produce", topic, url=broker.url) as process:
        write(process, b'{"n":1}\n{"n":2}\n{"n":')
        wait_for(broker, topic, 2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == exit_code
    assert errors.decode().startswith("interrupted: 2 events are stored (partition ")
    assert "is line 3; 5 bytes of a line without an end were not sent. Store" in errors.decode()
    assert count_of(broker, topic) == 2


def test_an_interrupted_pipe_goes_on_where_it_was_with_the_same_input(
    broker: RunningBroker, topic: str
) -> None:
    lines = ndjson([{"n": n} for n in range(10)])
    with started("produce", topic, url=broker.url) as process:
        write(process, lines[:48])  # five lines, and a piece of the next
        wait_for(broker, topic, 5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    resumed = run(*errors.decode().split()[-5:][1:], url=broker.url, stdin=lines)

    assert reported(resumed).startswith("✓ 5 events, ")
    stored = values_of(run("consume", topic, url=broker.url))
    assert sorted(map(json.dumps, stored)) == [json.dumps({"n": n}) for n in range(10)]


def test_an_interrupt_before_the_first_line_stores_nothing(
    broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started("produce", topic, "-f", str(pipe), url=broker.url) as process, pipe.open("wb"):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 130
    assert errors in (b"", b"interrupted: 0 events are stored\n")


# --- events as arguments --------------------------------------------------------------------------


def test_events_are_arguments_in_any_order_with_options(broker: RunningBroker, topic: str) -> None:
    words = ("--key", "SFO", '{"n":1}', "--header", "a=b", '{"n":2}', "--header", "a=c=d")
    produced = run("produce", topic, *words, url=broker.url)
    records = records_of(run("consume", topic, url=broker.url))

    assert reported(produced).startswith("✓ 2 events, 14 bytes, ")
    assert [record["value"] for record in records] == [{"n": 1}, {"n": 2}]
    assert [record["key"] for record in records] == ["SFO", "SFO"]
    pairs = [{"key": "a", "value": text} for text in ("b", "c=d")]
    assert [record["headers"] for record in records] == [pairs] * 2


def test_an_event_that_is_an_argument_may_have_line_ends(broker: RunningBroker, topic: str) -> None:
    reported(run("produce", topic, '{"n":\n1}\n', "--key", ".n", url=broker.url))
    [record] = records_of(run("consume", topic, url=broker.url))

    assert (record["key"], record["value"]) == ("1", {"n": 1})


@pytest.mark.parametrize("time", ["2026-01-02T03:04:05Z", "1767323045000000"])
def test_a_time_is_that_of_all_events(broker: RunningBroker, topic: str, time: str) -> None:
    reported(run("produce", topic, "--timestamp", time, url=broker.url, stdin=b"1\n2\n"))
    records = records_of(run("consume", topic, url=broker.url))

    assert [record["timestamp"] for record in records] == ["2026-01-02T03:04:05.000000Z"] * 2


def test_a_separator_stands_between_a_key_and_its_value(broker: RunningBroker, topic: str) -> None:
    lines = b'k1\t{"n":1}\r\n\nk2\t{"n":2,"t":"\\t"}\n'
    reported(run("produce", topic, "--key-separator", r"\t", url=broker.url, stdin=lines))
    records = records_of(run("consume", topic, url=broker.url))

    assert sorted((record["key"], json.dumps(record["value"])) for record in records) == [
        ("k1", '{"n": 1}'),
        ("k2", r'{"n": 2, "t": "\t"}'),
    ]


@pytest.mark.parametrize(
    ("words", "stdin", "named"),
    [
        (["hello"], b"", r"event 1 is not JSON \(expecting value at character 1\)"),
        (['{"a":"\\ud800"}'], b"", r"event 1 is not JSON \(.ud800 is half of a surrogate pair\)"),
        ([], b'{"a":"\\ud800"}\n', r"line 1 is not JSON \(.ud800 is half of a surrogate pair\)"),
        ([], b"\xff\n", r"line 1 is not JSON \(not UTF-8 at byte 1\)"),
        (["--key-separator", "="], b"k=hello\n", "line 1 is not JSON"),
        (["--header", "a=b"], b"hello\n", "line 1 is not JSON"),
        (["--key", ".a"], b'{"a":"\\udc00"}\n', r"line 1 is not JSON \(.udc00 is half of"),
    ],
)
def test_what_is_not_json_is_named_on_a_topic_that_checks_it(
    broker: RunningBroker, topic: str, words: list[str], stdin: bytes, named: str
) -> None:
    assert_fails(run("produce", topic, *words, url=broker.url, stdin=stdin), 1, named)
    assert count_of(broker, topic) == 0


@pytest.mark.parametrize(
    ("event", "remedy"),
    [
        ("hello", "quote a text, as '\"hello\"', or: tailrace topic alter "),
        ("fa.nd", "the lines of that file are stored by -f fa.nd"),
        ("{" * 5_000, " --no-json-check"),
    ],
)
def test_an_argument_that_is_not_json_is_refused_with_the_remedy(
    broker: RunningBroker, topic: str, tmp_path: Path, event: str, remedy: str
) -> None:
    (tmp_path / "fa.nd").write_text("1\n")
    result = run("produce", topic, event, url=broker.url, cwd=tmp_path)

    assert_fails(result, 1, rf"event 1 is not JSON \(.*\); .*{remedy}")


def test_lines_that_are_not_json_name_the_command_that_lets_a_topic_take_them(
    broker: RunningBroker, topic: str
) -> None:
    for name, verb in ((topic, "alter"), ("nosuch", "create")):
        said = f"; for lines of plain text: tailrace topic {verb} {name} --no-json-check"
        assert_fails(run("produce", name, url=broker.url, stdin=b"hello\n"), 1, said)
    keyed = run("produce", topic, "--key", ".a", url=broker.url, stdin=b"hello\n")
    later = run("produce", topic, url=broker.url, stdin=b"1\nhello\n")

    assert b"--no-json-check" not in keyed.stderr
    assert b"--no-json-check" not in later.stderr


def test_data_on_a_pipe_beside_events_is_not_passed_over_in_silence(
    broker: RunningBroker, topic: str
) -> None:
    beside = run("produce", topic, "1", url=broker.url, stdin=b"2\n")
    alone = run("produce", topic, "1", url=broker.url)

    warning = "warning: standard input has data, which was not read, since events are given as"
    assert beside.stderr.decode().startswith(warning)
    assert reported(beside).startswith("✓ 1 event, ")
    assert (alone.returncode, alone.stderr) == (0, b"")
    assert count_of(broker, topic) == 2


def test_an_output_that_fails_does_not_hide_what_is_stored(
    broker: RunningBroker, topic: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [TAILRACE, "produce", topic, '{"a":1}'],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(broker.url),
            timeout=TIMEOUT_S,
            check=False,
        )

    assert result.returncode == 1
    assert result.stderr.decode() == (
        "error: input or output: No space left on device. All is stored: 1 event, 7 bytes\n"
    )
    assert count_of(broker, topic) == 1


def test_a_time_ahead_of_the_broker_is_shown_as_people_write_times(
    broker: RunningBroker, topic: str
) -> None:
    date = run("produce", topic, "1", "--timestamp", "2130-01-01", url=broker.url)
    number = run("produce", topic, "1", "--timestamp", "9" * 18, url=broker.url)

    ahead = "is more than an hour ahead of the broker's clock"
    assert_fails(date, 1, f"--timestamp: 2130-01-01T00:00:00Z {ahead}")
    assert_fails(number, 1, f"--timestamp: {'9' * 18} µs since 1970 {ahead}")


def test_a_topic_that_does_not_check_takes_any_text(broker: RunningBroker, topic: str) -> None:
    reported(run("topic", "alter", topic, "--no-json-check", url=broker.url))
    reported(run("produce", topic, "hello", "", url=broker.url))
    reported(run("produce", topic, "--header", "a=b", url=broker.url, stdin=b"{\n"))

    assert count_of(broker, topic) == 3


# --- topics and limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["1"], []], ids=["argument", "line"])
def test_a_topic_that_was_created_is_named(
    broker: RunningBroker, tmp_path: Path, words: list[str]
) -> None:
    topic = f"{tmp_path.name}-typo"
    stdin = b"" if words else b"1\n"
    created = run("produce", topic, *words, "-o", "json", url=broker.url, stdin=stdin)
    again = run("produce", topic, *words, "-o", "json", url=broker.url, stdin=stdin)

    assert created.stderr.decode() == f"created topic {topic} (4 partitions)\n"
    assert json.loads(reported(created))["topicCreated"] is True
    assert again.stderr == b""
    assert json.loads(reported(again))["topicCreated"] is False


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["--key", ".a"], b'{"a":"x"}\n{"b":2}\n'),
        (["--header", "a=b"], b"1\n{bad\n"),
        ([], b'1\n2\n"%s"\n' % (b"x" * 150_000)),
    ],
    ids=["no key", "no JSON", "too large"],
)
def test_a_topic_that_was_created_is_named_when_the_first_batch_ends_in_an_error(
    broker: RunningBroker, tmp_path: Path, words: list[str], stdin: bytes
) -> None:
    topic = f"{tmp_path.name}-typo"
    result = run("produce", topic, *words, url=broker.url, stdin=stdin)
    created, error, *_ = result.stderr.decode().splitlines()

    assert result.returncode == 1
    assert created == f"created topic {topic} (4 partitions)"
    assert error.startswith("error: line ")
    assert count_of(broker, topic) == stdin.count(b"\n") - 1


def test_a_topic_is_named_exactly_when_a_refused_request_has_created_it(
    broker: RunningBroker, tmp_path: Path
) -> None:
    topic = f"{tmp_path.name}-typo"
    result = run("produce", topic, url=broker.url, stdin=b"{bad\n")
    with Client(broker.url) as client:
        exists = topic in [each.name for each in client.topics()]

    assert result.returncode == 1
    assert (f"created topic {topic} (4 partitions)\n" in result.stderr.decode()) is exists


def test_a_line_that_no_broker_takes_is_to_be_split(tmp_path: Path) -> None:
    """Neither by a broker with the largest bound, nor by one whose bound could be raised."""
    line = b'"%s"\n' % (b"x" * LARGEST_REQUEST_BYTES)
    errors = []
    for bytes_max in (LARGEST_REQUEST_BYTES, 100_000):
        with start_broker(tmp_path / str(bytes_max), max_request_bytes=bytes_max) as broker:
            errors.append(run("produce", "t", url=broker.url, stdin=line).stderr.decode())

    remedy = "a request has at most {:,} (the broker's maxRequestBytes): split it\n"
    assert errors[0].endswith(remedy.format(LARGEST_REQUEST_BYTES))
    assert errors[1].endswith(remedy.format(100_000))


@pytest.mark.parametrize("words", [[], ["--key-separator", "="]], ids=["plain", "with_key"])
def test_a_line_that_no_request_may_have_is_named_and_those_before_it_are_stored(
    broker: RunningBroker, topic: str, words: list[str]
) -> None:
    """All lines are far over what the broker takes in one request."""
    lines = [f'k="{n:01000d}"' if words else f'"{n:01000d}"' for n in range(2_000)]
    lines[1_234] = f'k="{"x" * 150_000}"' if words else f'"{"x" * 150_000}"'
    content = "".join(f"{line}\n" for line in lines).encode()
    result = run("produce", topic, *words, url=broker.url, stdin=content)

    assert result.returncode == 1
    assert f"error: line 1235 has {len(lines[1_234]) + 1:,} bytes, " in result.stderr.decode()
    assert (
        "at most 100,000 (the broker's maxRequestBytes): split it, or raise"
        in result.stderr.decode()
    )
    assert count_of(broker, topic) == 1_234
