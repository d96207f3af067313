"""Which consumer of a group reads which partition: a plan, the same for the same members.

Each partition goes to one consumer that subscribes to its topic. A partition stays where it is
unless that is unfair: consumers with the same topics differ by one partition at most.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from tailrace_broker.model.group import TopicPartition


def assign(
    tps: Mapping[str, Sequence[TopicPartition]],
    subscriptions: Mapping[str, Collection[str]],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return the owner of each topic-partition; those of topics without subscribers have none.

    `tps` by topic; `subscriptions` are topics by consumer; `owners` as it was before.
    O(partitions * consumers) for each pass; a pass moves what the one before left unfair.
    """
    wanted = [
        (sorted(tps[topic]), consumers)
        for topic in sorted(tps)
        if (consumers := sorted(each for each, topics in subscriptions.items() if topic in topics))
    ]
    load = dict.fromkeys(subscriptions, 0)
    planned: dict[TopicPartition, str] = {}
    for of_topic, consumers in wanted:
        for tp in of_topic:
            owner = owners.get(tp)
            if owner in consumers:
                planned[tp] = owner
                load[owner] += 1
    for of_topic, consumers in wanted:
        for tp in of_topic:
            if tp not in planned:
                planned[tp] = owner = _least(consumers, load)
                load[owner] += 1

    def move(is_unfair: Callable[[int, int, int], bool]) -> bool:
        """Give what is unfair to the consumer with the least; whether there was any."""
        has_moved = False
        for of_topic, consumers in wanted:
            # Moves among the consumers of one topic do not change their sum.
            fair_share = -(-sum(load[consumer] for consumer in consumers) // len(consumers))
            for tp in of_topic:
                owner, least = planned[tp], _least(consumers, load)
                if is_unfair(load[owner], load[least], fair_share):
                    planned[tp] = least
                    load[owner] -= 1
                    load[least] += 1
                    has_moved = True
        return has_moved

    # First what is above the fair share, so that nothing moves twice.
    move(lambda has, least, fair_share: has > max(fair_share, least + 1))
    # This ends: each move makes the sum of the squares of the loads smaller.
    while move(lambda has, least, _: has > least + 1):
        pass
    return planned


def _least(consumers: Sequence[str], load: Mapping[str, int]) -> str:
    """The one with the fewest partitions, of several the first."""
    return min(consumers, key=load.__getitem__)
