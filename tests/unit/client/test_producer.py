"""The producer's threads: a bug in them ends it, and nobody waits for ever."""

import os
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from tailrace import aio, aio_producer
from tailrace.errors import NotStoredError, TailraceError
from tailrace.produced import Produced
from tailrace.producer import Producer
from tailrace.sansio.batching import Outgoing
from tailrace.sansio.sending import Outcome, Stored
from tailrace.sync import Client


class MadeUpClient(Client):
    """Stores nothing, as `answer` says."""

    answer: Any = None

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9250", timeout_s=0.01)

    def twin(self, url: str | None = None, *, timeout_s: float | None = None) -> Any:
        return self

    def brokers(self) -> Any:
        raise TailraceError("not reported")

    def produce_encoded(self, topic: str, body: bytes, **numbered: Any) -> list[Produced]:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return [Produced(0, 0, 1, "fsync", 1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_a_thread_settles_what_it_had_and_ends_the_producer() -> None:
    client = MadeUpClient()
    client.answer = ZeroDivisionError("a bug")
    producer = Producer(client, linger_ms=0)
    sent = producer.send("t", b"1")
    with pytest.raises(NotStoredError, match="a bug") as caught:
        producer.flush()

    error = sent.exception(timeout=1)
    assert caught.value.write_attempted
    assert isinstance(error, TailraceError)
    assert error.write_attempted
    with pytest.raises(RuntimeError, match="takes no more records: it failed"):
        producer.send("t", b"2")
    producer.close()


def test_an_interrupted_close_gives_up_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(MadeUpClient(), linger_ms=60_000)
    sent = producer.send("t", b"1")
    monkeypatch.setattr(producer, "_flush", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.close()

    assert "closed in a hurry" in str(sent.exception(timeout=1))


def raise_interrupt() -> None:
    raise KeyboardInterrupt


class SilentClient(MadeUpClient):
    """Answers when that is over."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = Event()

    def produce_encoded(self, topic: str, body: bytes, **numbered: Any) -> list[Produced]:
        self.is_over.wait()
        return super().produce_encoded(topic, body, **numbered)


@pytest.fixture
def silent() -> Iterator[SilentClient]:
    client = SilentClient()
    yield client
    client.is_over.set()


def test_what_was_sent_is_stored_at_the_end_of_a_program_that_did_not_close() -> None:
    producer = Producer(MadeUpClient(), linger_ms=60_000)
    sent = producer.send("t", b"1")
    producer._close_at_exit(os.getpid())

    assert sent.result(timeout=0) == Stored("t", None, None)
    with pytest.raises(RuntimeError, match="takes no more records: the program ends"):
        producer.send("t", b"2")
    producer.close()


def test_the_end_of_a_program_waits_for_the_last_attempt_and_reports_what_was_lost(
    silent: SilentClient,
) -> None:
    producer = Producer(silent, linger_ms=0, patience_s=0.01)
    sent = [producer.send("t", b"1") for _ in range(3)]
    with pytest.raises(NotStoredError, match=r"3 records .* 0\.02 s later"):
        producer._close_at_exit(os.getpid())

    assert all(each.exception(timeout=0) is not None for each in sent)


def test_the_end_of_a_fork_waits_for_nothing(silent: SilentClient) -> None:
    producer = Producer(silent, linger_ms=0, patience_s=60)
    sent = producer.send("t", b"1")
    producer._close_at_exit(os.getpid() + 1)

    assert not sent.done()
    silent.is_over.set()
    producer.close()


def test_an_awaited_producer_that_goes_away_with_records_reports_their_count() -> None:
    producers = [aio_producer.Producer(aio.Client("http://127.0.0.1:9250"))]
    sending = producers[0]._sending
    for _ in range(1_001):
        ticket: Any = None
        record = sending.outgoing("t", b"1", key=None, timestamp_us=None, headers=(), ticket=ticket)
        sending.add(record, 0)
    with pytest.warns(ResourceWarning, match=r"1,001 records were sent .* use \"async with\""):
        producers.clear()


def test_what_a_callback_raises_does_not_stop_the_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(record: Outgoing[Any], outcome: Outcome) -> None:
        raise ValueError("the caller's bug")

    with Producer(MadeUpClient(), linger_ms=0, on_outcome=refuse) as producer:
        sent = [producer.send("t", b"1").result(timeout=1) for _ in range(2)]

    assert sent == [Stored("t", None, None)] * 2
    assert caplog.text.count("ValueError: the caller's bug") == 2
