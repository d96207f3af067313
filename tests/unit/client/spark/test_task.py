"""What a task does when what it reads is not there, or not any more."""

from collections.abc import Sequence

import pytest

from tailrace.errors import ProblemError, TailraceError, problem_error
from tailrace.spark import connection, task
from tailrace.spark.offsets import OffsetRange
from tailrace.spark.options import Read, parse_read_options
from tailrace.spark.stream_offsets import OLDER_LISTINGS_MAX
from tailrace.spark.task import DataLossError, read_range
from tailrace.values import Fetched
from tests.support.storage.batches import Event, batch_of

Answer = Fetched | TailraceError


def stored(base_offset: int, count: int) -> Fetched:
    body = batch_of([Event(b"1")] * count, base_offset=base_offset)
    return Fetched(body, base_offset + count, 100, 0, 1, False, ())


def problem(type: str, status: int, **members: object) -> ProblemError:
    return problem_error(status, {"type": f"/v1/problems/{type}", **members})


def damage(*, accepted: bool) -> ProblemError:
    offsets = {"firstOffset": 2, "lastOffset": 6, "nextOffset": 7}
    return problem("corrupt-partition", 503, **offsets, accepted=accepted)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """At which offsets the broker was asked."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    return []


def read(
    monkeypatch: pytest.MonkeyPatch, asked: list[int], answers: Sequence[Answer], **given: str
) -> list[int]:
    """The offsets [0, 10) as far as they are read; the last answer is that to all that follow."""

    class Broker:
        def __init__(self, url: str, **_: object) -> None:
            self.url = url

        def read_batches(self, topic: str, partition: int, offset: int, **_: object) -> Fetched:
            asked.append(offset)
            answer = answers[min(len(asked), len(answers)) - 1]
            if isinstance(answer, TailraceError):
                raise answer
            return answer

        def close(self) -> None:
            pass

    monkeypatch.setattr(connection, "Client", Broker)
    monkeypatch.setattr(task, "_freeze_heap", lambda: None)
    options = parse_read_options({"url": "http://a:9250", "subscribe": "t", **given}, Read.STREAM)
    batches = read_range(OffsetRange("t", 7, 0, 10), options)
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_a_loss_that_was_accepted_is_passed_over_when_losses_may_be(
    monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    answers: list[Answer] = [stored(0, 2), damage(accepted=True), stored(7, 3)]

    offsets = read(monkeypatch, asked, answers, failOnDataLoss="false")

    assert offsets == [0, 1, 7, 8, 9]


def test_a_loss_that_was_accepted_ends_the_read_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    with pytest.raises(DataLossError, match="failOnDataLoss to false"):
        read(monkeypatch, asked, [stored(0, 2), damage(accepted=True)])


def test_damage_that_nobody_has_accepted_ends_every_read(
    monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    with pytest.raises(ProblemError):
        read(monkeypatch, asked, [stored(0, 2), damage(accepted=False)], failOnDataLoss="false")


@pytest.mark.parametrize("type", ["partition-not-found", "topic-not-found"])
def test_a_broker_that_has_not_heard_of_the_last_step_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, asked: list[int], type: str
) -> None:
    offsets = read(monkeypatch, asked, [problem(type, 404), problem(type, 404), stored(0, 10)])

    assert offsets == list(range(10))


@pytest.mark.parametrize("type", ["partition-not-found", "topic-not-found"])
def test_what_was_removed_meanwhile_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, asked: list[int], type: str
) -> None:
    answers: list[Answer] = [stored(0, 2), problem(type, 404)]

    with pytest.raises(DataLossError, match="t/7"):
        read(monkeypatch, asked, answers)
    asked.clear()
    assert read(monkeypatch, asked, answers, failOnDataLoss="false") == [0, 1]
    assert asked == [0] + [2] * (1 + OLDER_LISTINGS_MAX)
