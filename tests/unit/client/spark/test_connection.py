from collections.abc import Callable
from typing import Any

import pytest

from tailrace.errors import ConnectionFailedError, PartitionUnavailableError, TailraceError
from tailrace.spark.connection import PatientClient, list_partitions
from tailrace.spark.options import Read, parse_read_options
from tailrace.sync import Client
from tailrace.values import PartitionOffsets

URLS = ("http://a:9250", "http://b:9250")


def failing(times: int, error: TailraceError, asked: list[str]) -> Callable[[Client], str]:
    """A request that fails so often; who was asked is noted. Nothing is sent."""

    def request(client: Client) -> str:
        asked.append(client.url)
        if len(asked) <= times:
            raise error
        return "answer"

    return request


def passing_error() -> TailraceError:
    return ConnectionFailedError("http://a:9250", "connection refused")


def test_the_first_broker_that_answers_is_asked_again() -> None:
    asked: list[str] = []
    client = PatientClient(URLS, retry_count=0)

    assert client.ask(failing(1, passing_error(), asked)) == "answer"
    assert client.ask(failing(0, passing_error(), asked)) == "answer"
    assert asked == ["http://a:9250", "http://b:9250", "http://b:9250"]


def test_another_broker_can_be_asked_next() -> None:
    asked: list[str] = []
    client = PatientClient(URLS)

    client.ask(failing(0, passing_error(), asked))
    client.turn(0)
    client.ask(failing(0, passing_error(), asked))
    assert asked == [*URLS]


def test_all_brokers_are_asked_in_turn_until_the_retries_are_used_up() -> None:
    asked: list[str] = []
    client = PatientClient(URLS, retry_count=2, retry_interval_s=0)

    with pytest.raises(ConnectionFailedError):
        client.ask(failing(100, passing_error(), asked))
    assert asked == [*URLS] * 3


def test_what_a_retry_does_not_cure_is_raised_at_once() -> None:
    asked: list[str] = []

    with pytest.raises(TailraceError, match="no such thing"):
        PatientClient(URLS).ask(failing(100, TailraceError("no such thing"), asked))
    assert asked == ["http://a:9250"]


def test_each_round_waits_twice_as_long_and_reports_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = PatientClient(URLS[:1], retry_count=3, retry_interval_s=0.0001)

    client.ask(failing(3, passing_error(), []))

    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == (
        pytest.approx([0.0001, 0.0002, 0.0004])
    )
    assert "no broker answers at http://a:9250 (connection refused)" in caplog.messages[0]


def row(partition: int, end: int | None, state: str = "open") -> PartitionOffsets:
    return PartitionOffsets("t", partition, 0, 1, 0, end and 0, end, end, state, ())


class Listings(PatientClient):
    """Answers each listing with the next of some; nothing is sent."""

    def __init__(self, *answers: list[PartitionOffsets]) -> None:
        super().__init__(URLS[:1], retry_count=2, retry_interval_s=0)
        self.answers = list(answers)

    def offsets(self, topics: list[str], timestamp_us: int | None) -> list[PartitionOffsets]:
        assert topics == ["t"]
        return self.answers.pop(0)

    def _connected(self) -> Any:
        return self


def test_a_partition_without_a_leader_is_waited_for() -> None:
    """Of each listing: one by a time would say that no record is as late."""
    settled = [row(0, 5), row(1, None)]
    client = Listings([row(0, None)], settled, [row(0, None)], settled, settled)
    given = {"url": URLS[0], "assign": '{"t":[0]}', "startingTimestamp": "7"}
    options = parse_read_options(given, Read.BATCH)

    assert list_partitions(client, options, with_times=True).partitions == settled
    assert client.answers == []


def test_a_partition_that_stays_without_a_leader_or_is_damaged_is_reported() -> None:
    options = parse_read_options({"url": URLS[0], "subscribe": "t"}, Read.BATCH)
    with pytest.raises(PartitionUnavailableError):
        list_partitions(Listings(*[[row(0, None)]] * 3), options)

    damaged = [row(0, None, "damaged")]
    assert list_partitions(Listings(damaged), options).partitions == damaged
