"""What the tables of routes share."""

from typing import Any

from tailrace.wire import JSON_CONTENT_TYPE
from tailrace_broker.model import errors
from tailrace_broker.net.http.router import AnswerForm

TOPIC_PROBLEMS = (errors.InvalidTopicNameError, errors.TopicNotFoundError, errors.NotReadyError)
LED_PROBLEMS = (errors.NotLeaderError, errors.NoLeaderError)
LOG_PROBLEMS = (
    *LED_PROBLEMS,
    errors.PartitionNotFoundError,
    errors.CorruptPartitionError,
    errors.ReadFailedError,
)
STORE_PROBLEMS = (
    errors.DiskFullError,
    errors.StorageFailedError,
    errors.NotEnoughReplicasError,
)


def json_answer(status: int, description: str, schema: Any = None) -> AnswerForm:
    """An answer of JSON."""
    return AnswerForm(status, description, {JSON_CONTENT_TYPE: schema})
