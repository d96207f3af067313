from collections.abc import Iterator

from tailrace_broker.model.errors import (
    CallerError,
    OutcomeUnknownError,
    OverloadError,
    StartError,
    StorageFailedError,
    TailraceError,
)


def kinds_of(base: type[TailraceError]) -> Iterator[type[TailraceError]]:
    """The errors below `base` that are raised: those that none is derived from."""
    for kind in base.__subclasses__():
        yield from kinds_of(kind)
        if not kind.__subclasses__():
            yield kind


def test_what_the_caller_got_wrong_stays_wrong() -> None:
    assert not any(kind.retriable for kind in kinds_of(CallerError))
    assert not any(kind.retriable for kind in kinds_of(StartError))


def test_an_overload_passes() -> None:
    assert all(kind.retriable for kind in kinds_of(OverloadError))


def test_only_after_a_failed_write_or_a_lost_leader_may_a_retry_store_twice() -> None:
    assert {kind for kind in kinds_of(TailraceError) if kind.write_attempted} == {
        OutcomeUnknownError,
        StorageFailedError,
    }


def test_an_error_carries_what_the_problem_document_shows() -> None:
    error = StorageFailedError("disk gone", topic="flights", partition=3)

    assert str(error) == error.detail == "disk gone"
    assert error.members == {"topic": "flights", "partition": 3}
