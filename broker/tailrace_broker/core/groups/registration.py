"""Who may act under the id of a consumer that is registered, and where a group begins."""

from collections.abc import Iterable, Mapping

from tailrace_broker.core.groups.member import Member
from tailrace_broker.core.groups.offsets import partitions_in
from tailrace_broker.model.errors import ConsumerExistsError, StaleAssignmentError
from tailrace_broker.model.group import Subscription, TopicPartition
from tailrace_broker.model.topic import Topic


def check_same(registered: Subscription, wanted: Subscription) -> None:
    """ConsumerExistsError: the consumer is registered with other values."""
    if registered != wanted:
        raise ConsumerExistsError(
            f'consumer "{wanted.consumer_id}" is registered with other values; let it say '
            "goodbye first, or choose another consumerId",
            consumerId=wanted.consumer_id,
        )


def check_epoch(member: Member, epoch: int | None) -> None:
    """StaleAssignmentError: a request of a process that knows of an older registration."""
    if epoch is not None and epoch < member.joined_epoch:
        consumer_id = member.subscription.consumer_id
        raise StaleAssignmentError(
            f'consumer "{consumer_id}" has registered again since, in assignment epoch '
            f"{member.joined_epoch}, and this request knows of {epoch}: another process has taken "
            "its id",
            assignmentEpoch=member.joined_epoch,
        )


def starts_in(
    topics: Iterable[Topic], logs: Mapping[TopicPartition, tuple[int, int]], wanted: Subscription
) -> dict[TopicPartition, int]:
    """Return where a group begins in topics that are new to it.

    `logs`: log start and high watermark of their partitions, undamaged ones.
    """
    starts: dict[TopicPartition, int] = {}
    for topic in topics:
        for tp, partition in zip(partitions_in(topic), topic.partitions, strict=True):
            first, end = partition.known_start, partition.sealed_end
            log_start, high_watermark = logs.get(tp, (first, end or first))
            is_latest = wanted.on_new_group == "startFromLatest"
            starts[tp] = high_watermark if is_latest else log_start
    return starts
