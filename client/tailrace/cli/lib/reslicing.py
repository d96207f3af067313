"""What another number of partitions per range touches, and how far the ring is with it."""

import sys
import time
from typing import TYPE_CHECKING, Any

from tailrace.cli.lib.options import counted
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.sync import Client
    from tailrace.values import TopicDetails, TopicInfo

PAUSE_S = 0.2


def wait_resliced(client: "Client", topic: "TopicInfo") -> "TopicInfo":
    """Return the topic when no range waits any more. TailraceError: it was deleted meanwhile."""
    said = 0
    while topic.ranges_to_slice:
        if topic.ranges_to_slice != said:
            said = topic.ranges_to_slice
            sys.stderr.write(
                f"{topic.name}: {counted(said, 'range')} still to come to "
                f"{counted(topic.partitions_per_range, 'partition')}\n"
            )
        time.sleep(PAUSE_S)
        known = (each for each in client.topics() if each.id == topic.id)
        found = next(known, None)
        if found is None:
            raise TailraceError(f"topic {topic.name} was deleted meanwhile")
        topic = found
    return topic


def plan_reslice(client: "Client", details: "TopicDetails", wanted: int) -> dict[str, Any]:
    """Count the ranges that have another number now, and what is sealed with them."""
    by_range: dict[int, int] = {}
    for each in details.partition_details:
        if each.state != "sealed":
            by_range[each.range_id] = by_range.get(each.range_id, 0) + 1
    touched = [count for count in by_range.values() if count != wanted]
    others = [each for each in client.topics() if each.id != details.topic.id]
    return {
        "ranges": len(touched),
        "sealedPartitions": sum(touched),
        "newPartitions": wanted * len(touched),
        "otherTopics": len(others),
        "otherPartitions": sum(each.partitions_per_range for each in others) * len(touched),
    }


def reslice_text(name: str, plan: dict[str, Any]) -> str:
    """Return a plan as the text that people read."""
    text = (
        f"{counted(plan['ranges'], 'range')} re-sliced, one after another: "
        f"{counted(plan['sealedPartitions'], 'partition')} of {name} sealed, "
        f"{plan['newPartitions']} new"
    )
    if plan["otherPartitions"]:
        text += (
            f"; {counted(plan['otherPartitions'], 'partition')} of "
            f"{counted(plan['otherTopics'], 'other topic')} sealed, and as many new"
        )
    return f"{text}. Nothing is copied; each range pauses for milliseconds"
