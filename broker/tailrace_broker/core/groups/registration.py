"""Checks what may register under the id of a consumer that is registered."""

from tailrace_broker.model.errors import ConsumerExistsError
from tailrace_broker.model.group import Subscription


def check_same(registered: Subscription, wanted: Subscription) -> None:
    """ConsumerExistsError: the consumer is registered with other values."""
    if registered != wanted:
        raise ConsumerExistsError(
            f'consumer "{wanted.consumer_id}" is registered with other values; let it say '
            "goodbye first, or choose another consumerId",
            consumerId=wanted.consumer_id,
        )
