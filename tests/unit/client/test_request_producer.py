"""A caller's own requests under numbers: which number the next one gets, and what is unsettled."""

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.errors import ProblemError
from tailrace.produced import Produced
from tailrace.request_producer import RequestProducer


class Client:
    """Gives a test's outcomes in their order."""

    def __init__(self, *outcomes: ProblemError | list[Produced]) -> None:
        self.sequences: list[int] = []
        self._outcomes = list(outcomes)

    def produce_records(self, *_: object, sequence: int, **__: object) -> list[Produced]:
        self.sequences.append(sequence)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, ProblemError):
            raise outcome
        return outcome


def produced(partition: int, count: int) -> Produced:
    return Produced(partition, 10, count, "fsync", 1)


def full(partition: int) -> ProblemError:
    return ProblemError(
        type="disk-full", title="full", status=507, members={"partition": partition}
    )


def cut(*parts: Produced | ProblemError) -> ProblemError:
    error = full(0)
    error.write_attempted = any(isinstance(part, Produced) for part in parts)
    error.parts = parts
    return error


def producer_of(client: Client) -> RequestProducer:
    fake: Any = client
    return RequestProducer(fake, id="p", sequence=7)


@pytest.mark.parametrize(
    ("parts", "stored"),
    [
        ([produced(0, 2), full(1)], {0: 2}),
        ([produced(0, 2), produced(0, 3), full(1)], {0: 5}),
        ([produced(0, 2), full(0)], {}),
        ([full(0), produced(0, 2)], {}),
    ],
)
def test_a_partition_is_stored_when_all_elements_of_it_are(
    parts: Sequence[Produced | ProblemError], stored: dict[int, int]
) -> None:
    producer = producer_of(Client(cut(*parts)))

    with pytest.raises(ProblemError):
        producer.produce_records("t", [b"k"], [b"v"])
    assert producer.unsettled is not None
    assert producer.unsettled.stored == stored


def test_a_number_is_used_again_only_when_nothing_may_have_it() -> None:
    client = Client(cut(full(0)), [produced(0, 1)], cut(produced(0, 1), full(1)), [produced(0, 1)])
    producer = producer_of(client)
    for _ in range(2):
        with pytest.raises(ProblemError):
            producer.produce_records("t", [b"k"], [b"v"])
        producer.produce_records("t", [b"k"], [b"v"])

    assert client.sequences == [7, 7, 8, 9]
