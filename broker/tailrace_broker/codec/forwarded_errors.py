"""Errors of a leader as they travel to the broker that forwarded the request, and back."""

from tailrace_broker.model import errors
from tailrace_broker.model.errors import StorageFailedError, TailraceError
from tailrace_broker.model.forwarding import FailedRequest

# Those that are made of a text and members alone.
_CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, TailraceError)
    and kind.__init__ is TailraceError.__init__
}


def failed_request(number: int, error: TailraceError) -> FailedRequest:
    """The error as it travels."""
    name = type(error).__name__
    return FailedRequest(number, name, error.detail, error.members, error.write_attempted)


def error_of(failed: FailedRequest) -> TailraceError:
    """The error that the leader has met. One of another version: whether it stored is unknown."""
    error = _CLASSES.get(failed.error, StorageFailedError)(failed.detail, **failed.members)
    error.write_attempted = failed.write_attempted
    return error
