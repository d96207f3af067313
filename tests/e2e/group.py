"""A group of consumers in the clients' pod, and what it must get of what producers send."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tests.e2e.client_pod import PROGRAMS, ClientPod, Load
from tests.e2e.kubernetes import Running

GROUP = "readers"
CONSUMERS = 3


@dataclass(frozen=True)
class Group:
    """Consumers that read one topic."""

    client: ClientPod
    url: str
    running: Running

    def assert_got_all(self, load: Load) -> None:
        """Each acknowledged event, those of a producer and key in their order, once it has all.

        An event may come again: the first time counts.
        """
        kubernetes = self.client.kubernetes
        kubernetes.until(lambda: self._lag() == 0, "the group has read all")
        delivered = [line.strip() for line in self.running.finish()]
        order = {event_id: number for number, event_id in reversed([*enumerate(delivered)])}
        missing = [event for event in load.acknowledged if event.event_id not in order]
        places: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for event in load.acknowledged:
            places[event.producer, event.key].append(order.get(event.event_id, -1))
        reordered = [
            key for key, numbers in places.items() if any(a > b for a, b in pairwise(numbers))
        ]
        again = len(delivered) - len(order)
        kubernetes.say(
            f"the group got {len(order)} events, {again} more than once; missing: {len(missing)},"
            f" keys that are not in order: {len(reordered)}"
        )
        assert (missing[:5], reordered[:5]) == ([], [])
        assert order.keys() <= load.sent_ids

    def _lag(self) -> int | None:
        lag: int | None = self.client.json(self.url, "group", "describe", GROUP)["lag"]
        return lag


@contextmanager
def reading(client: ClientPod, url: str, topic: str) -> Iterator[Group]:
    """Consumers that go on while the block lasts."""
    program = (PROGRAMS / "consume.py").read_text()
    command = ["exec", "--stdin", client.name, "--", "python", "-c", program]
    with client.kubernetes.running(*command, url, topic, GROUP, str(CONSUMERS)) as running:
        yield Group(client, url, running)
