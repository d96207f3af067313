"""Errors between a leader and the broker that forwarded a request."""

from tailrace_broker.codec.forwarded_errors import error_of, failed_request
from tailrace_broker.model.errors import NoLeaderError, NotLeaderError, StorageFailedError
from tailrace_broker.model.forwarding import FailedRequest


def test_an_error_is_the_same_at_the_other_end() -> None:
    error = NotLeaderError("ask another", leader=2, children=[3, 4], topic="t")

    arrived = error_of(failed_request(7, error))

    assert type(arrived) is NotLeaderError
    assert (arrived.detail, arrived.members) == (error.detail, error.members)
    assert not arrived.write_attempted


def test_what_the_error_says_of_this_request_travels_too() -> None:
    error = NoLeaderError("ended")
    error.write_attempted = True

    assert error_of(failed_request(7, error)).write_attempted


def test_an_error_of_another_version_leaves_open_what_is_stored() -> None:
    arrived = error_of(FailedRequest(7, "NewError", "who knows", {}, True))

    assert type(arrived) is StorageFailedError
    assert arrived.write_attempted
