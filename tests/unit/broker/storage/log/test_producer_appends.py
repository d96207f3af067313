"""Which requests of producers are appended, and what the others are told."""

from functools import partial

import pytest

from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.core.log.producers import Producer, ProducerWindows
from tailrace_broker.model.appended import Appended
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import DiskFullError, SequenceReusedError, TailraceError
from tailrace_broker.storage.log.producer_appends import ProducerAppends
from tests.support.storage.batches import TIME_US, Event, body_of, place_of

PRODUCER = Producer.named(b"till-7", 5)


class Partition:
    """Producers of a partition, and what each of their requests was told, in that order."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.appends = ProducerAppends(ProducerWindows(), self.counters, lambda: TIME_US)
        self.told: list[tuple[str, int, str | None, bool]] = []

    def request(self, name: str, *, record_count: int = 1) -> Appended | None:
        """What is to be told when it is appended."""
        return self.appends.admit(PRODUCER, record_count, partial(self._tell, name))

    def store(self, offset: int) -> None:
        """A batch with the request, as the log publishes it."""
        table = encode_table([TableEntry(*PRODUCER, 0, 1)])
        body = body_of([Event(b"1")], producer_table=table)
        plain = stamp_batch(body_of([Event(b"0")]), place_of(base_offset=offset - 1))
        self.appends.on_stored([plain, stamp_batch(body, place_of(base_offset=offset))])

    def _tell(
        self,
        name: str,
        offset: int,
        error: TailraceError | None,
        /,
        *,
        is_duplicate: bool = False,
    ) -> None:
        self.told.append((name, offset, error.detail if error else None, is_duplicate))


def test_a_new_request_is_appended_and_its_retry_is_not() -> None:
    partition = Partition()
    done = partition.request("first")
    assert done is not None
    partition.store(offset=7)
    done(7, None)

    assert partition.request("retry") is None
    assert partition.told == [("first", 7, None, False), ("retry", 7, None, True)]
    assert partition.counters.produce_duplicates == 1


def test_retries_of_what_is_under_way_are_told_with_it() -> None:
    partition = Partition()
    done = partition.request("first")
    assert done is not None
    assert [partition.request("second"), partition.request("third")] == [None, None]
    assert partition.told == []
    partition.store(offset=7)
    done(7, None)

    assert partition.told == [
        ("first", 7, None, False),
        ("second", 7, None, True),
        ("third", 7, None, True),
    ]
    assert partition.counters.produce_duplicates == 2


def test_what_fails_fails_for_its_retries_and_the_next_is_new() -> None:
    partition = Partition()
    done = partition.request("first")
    assert done is not None
    assert partition.request("second") is None
    done(-1, DiskFullError("full"))

    assert partition.told == [("first", -1, "full", False), ("second", -1, "full", False)]
    assert partition.counters.produce_duplicates == 0
    assert partition.request("third") is not None


@pytest.mark.parametrize("is_under_way", [False, True])
def test_what_is_refused_is_told_at_once(is_under_way: bool) -> None:
    partition = Partition()
    done = partition.request("first")
    assert done is not None
    if not is_under_way:
        partition.store(offset=7)
        done(7, None)

    assert partition.request("other", record_count=2) is None
    [name, offset, detail, _] = partition.told[-1]
    assert (name, offset) == ("other", -1)
    assert detail is not None
    assert detail.startswith("sequence 5 brought 1 events before, and now 2")
    assert SequenceReusedError.retriable is False
