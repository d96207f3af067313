"""Problem documents become the errors that callers act on."""

import pytest

from tailrace.errors import (
    ConnectionFailedError,
    OffsetOutOfRangeError,
    ProblemError,
    TailraceError,
    TopicNotFoundError,
    problem_error,
)


def test_a_problem_keeps_every_member_of_its_document() -> None:
    error = problem_error(
        400,
        {
            "type": "/v1/problems/invalid-record",
            "title": "Line 2 is not JSON",
            "status": 400,
            "detail": "invalid character at byte 13; nothing was stored",
            "line": 2,
            "retriable": False,
            "writeAttempted": False,
        },
    )

    assert type(error) is ProblemError
    assert error.type == "invalid-record"
    assert error.title == "Line 2 is not JSON"
    assert error.status == 400
    assert error.detail == "invalid character at byte 13; nothing was stored"
    assert error.members == {"line": 2}
    assert not error.retriable
    assert not error.write_attempted
    assert str(error) == "Line 2 is not JSON: invalid character at byte 13; nothing was stored"


def test_retriable_and_write_attempted_come_from_the_broker() -> None:
    error = problem_error(
        500,
        {"type": "/v1/problems/storage-failed", "retriable": True, "writeAttempted": True},
    )

    assert error.retriable
    assert error.write_attempted


def test_a_missing_topic_has_its_own_class() -> None:
    error = problem_error(404, {"type": "/v1/problems/topic-not-found", "topic": "nosuch"})

    assert isinstance(error, TopicNotFoundError)
    assert error.topic == "nosuch"


def test_an_offset_out_of_range_says_what_is_in_range() -> None:
    error = problem_error(
        416, {"type": "/v1/problems/offset-out-of-range", "logStart": 3, "highWatermark": 9}
    )

    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.log_start, error.high_watermark) == (3, 9)


@pytest.mark.parametrize("document", [{}, {"title": None, "detail": None}])
def test_an_error_page_of_another_server_still_names_its_status(
    document: dict[str, object],
) -> None:
    error = problem_error(502, document)

    assert error.type == "about:blank"
    assert str(error) == "HTTP status 502"
    assert not error.retriable


def test_a_failed_connection_names_the_url_and_the_remedy() -> None:
    error = ConnectionFailedError("http://127.0.0.1:9250", "Connection refused")

    assert isinstance(error, TailraceError)
    assert error.retriable
    assert not error.write_attempted
    assert "http://127.0.0.1:9250 (Connection refused)" in str(error)
    assert "tailrace dev" in str(error)
