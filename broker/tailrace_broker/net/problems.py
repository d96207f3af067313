"""Errors -> RFC 9457 problem documents. The only place that knows their HTTP statuses."""

import msgspec

from tailrace_broker.model import errors
from tailrace_broker.model.errors import TailraceError

PROBLEM_CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

# class -> (slug, status, title); the most derived class that is listed counts.
_PROBLEMS: dict[type[TailraceError], tuple[str, int, str]] = {
    errors.InvalidTopicNameError: ("invalid-topic-name", 400, "Invalid topic name"),
    errors.InvalidRecordError: ("invalid-record", 400, "Line {line} is not JSON"),
    errors.InvalidRequestError: ("invalid-request", 400, "Invalid HTTP request"),
    errors.InvalidBodyError: ("invalid-body", 400, "Invalid body"),
    errors.InvalidParameterError: ("invalid-parameter", 400, "Invalid {parameter}"),
    errors.TopicNotFoundError: ("topic-not-found", 404, "No such topic"),
    errors.PartitionNotFoundError: ("partition-not-found", 404, "No such partition"),
    errors.PathNotFoundError: ("not-found", 404, "No such path"),
    errors.MethodNotAllowedError: ("method-not-allowed", 405, "Method not allowed"),
    errors.RequestTimeoutError: ("request-timeout", 408, "Request timeout"),
    errors.TopicExistsError: ("topic-exists", 409, "Topic exists"),
    errors.BodyTooLargeError: ("body-too-large", 413, "Body too large"),
    errors.UnsupportedMediaTypeError: ("unsupported-media-type", 415, "Unsupported media type"),
    errors.OffsetOutOfRangeError: ("offset-out-of-range", 416, "Offset out of range"),
    errors.ProduceMemoryFullError: ("produce-memory-full", 429, "Produce memory full"),
    errors.HeaderTooLargeError: ("header-too-large", 431, "Header too large"),
    errors.CorruptPartitionError: ("corrupt-partition", 503, "Stored data is damaged"),
    errors.NotReadyError: ("not-ready", 503, "Not ready"),
    errors.ReadFailedError: ("read-failed", 500, "Read failed"),
    errors.DiskFullError: ("disk-full", 507, "Disk full"),
    errors.StorageFailedError: ("storage-failed", 500, "Storage failed"),
}
_INTERNAL = ("internal", 500, "Internal error")


def problem_status(error: TailraceError) -> int:
    """The HTTP status of an error's answer."""
    return _PROBLEMS.get(type(error), _INTERNAL)[1]


def problem_members(error: TailraceError) -> dict[str, str | int | bool]:
    """The problem document as a dict, names as on the wire."""
    slug, status, title = _PROBLEMS.get(type(error), _INTERNAL)
    members = {name: _encodable(value) for name, value in error.members.items()}
    return {
        "type": f"/v1/problems/{slug}",
        "title": title.format_map(members),
        "status": status,
        "detail": _encodable(error.detail),
        **members,
        "retriable": error.retriable,
        "writeAttempted": error.write_attempted,
    }


def problem_body(error: TailraceError) -> bytes:
    """The problem document."""
    return msgspec.json.encode(problem_members(error))


def problem_headers(error: TailraceError) -> dict[str, str]:
    """Headers of the answer beside content type and length."""
    wants_delay = problem_status(error) in {429, 503}
    return {"retry-after": str(RETRY_AFTER_S)} if wants_delay and error.retriable else {}


def _encodable(value: str | int) -> str | int:
    """Without the surrogates that stand for bytes of the peer which were no UTF-8 (PEP 383)."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
