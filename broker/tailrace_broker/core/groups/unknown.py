"""The errors of requests for a consumer or a group that is not there."""

from tailrace_broker.model.errors import ConsumerNotRegisteredError, GroupNotFoundError


def not_registered(consumer_id: str) -> ConsumerNotRegisteredError:
    """The error of every request of a consumer that is not there."""
    return ConsumerNotRegisteredError(
        f'consumer "{consumer_id}" is not registered, or was not seen for too long: register, '
        "then poll again",
        consumerId=consumer_id,
    )


def group_not_found(group: str) -> GroupNotFoundError:
    """The error of every request for a group that is not there."""
    return GroupNotFoundError(
        f'group "{group}" does not exist; GET /v1/groups lists those that do', group=group
    )
