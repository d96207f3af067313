"""The producer's threads: a bug in them ends it, and nobody waits for ever."""

from typing import Any

import pytest

from tailrace.batching import Outgoing
from tailrace.errors import NotStoredError, TailraceError
from tailrace.producer import Producer
from tailrace.sending import Outcome, Stored
from tailrace.sync import Client
from tailrace.values import Produced


class MadeUpClient(Client):
    """Stores nothing, as `answer` says."""

    answer: Any = None

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9250")

    def twin(self, url: str | None = None) -> Any:
        return self

    def brokers(self) -> Any:
        raise TailraceError("not told")

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


def test_what_a_callback_raises_does_not_stop_the_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(record: Outgoing[Any], outcome: Outcome) -> None:
        raise ValueError("the caller's bug")

    with Producer(MadeUpClient(), linger_ms=0, on_outcome=refuse) as producer:
        sent = [producer.send("t", b"1").result(timeout=1) for _ in range(2)]

    assert sent == [Stored("t", None, None)] * 2
    assert caplog.text.count("ValueError: the caller's bug") == 2
