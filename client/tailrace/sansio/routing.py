"""Sans-IO: which partition a key belongs to, and which broker leads it, by what brokers answered.

Any broker takes any record and passes it on, so a wrong or missing answer here costs a hop and
never a record. On a ring of one, and while nothing is known, all goes to the URL that was given.
`Routing` is renewed when an answer shows that it is out of date, and on a ring of several brokers
now and then: leaders come back to their ranges. When the broker that was given is away, another
takes its place (`contact`).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from tailrace.errors import ProblemError, TailraceError
from tailrace.sansio.contact import Contact
from tailrace.values import PartitionDetails, RingStatus, TopicDetails

# Of what is known about a topic, where brokers can be distinguished.
AGE_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class _Topic:
    """The partitions that take records, in the order of their tokens; each up to the next."""

    starts: Sequence[int]
    partitions: Sequence[int]
    leaders: Sequence[int | None]
    learned_s: float
    is_expired: bool = False


class Routing:
    """What is known of a ring, of which a broker is at `url`."""

    def __init__(self, url: str) -> None:
        self.contact = Contact(url)
        self._urls: dict[int, str] = {}  # by ordinal; those that can be distinguished
        self._topics: dict[str, _Topic] = {}
        self._unreachable: set[str] = set()
        self._knows_ring = False

    @property
    def url(self) -> str:
        """The broker to ask for what nothing is known of."""
        return self.contact.url

    @property
    def knows_ring(self) -> bool:
        """Whether `learn_ring` was called."""
        return self._knows_ring

    def learn_ring(self, status: RingStatus) -> None:
        """Where its brokers are; forgets which were unreachable."""
        self._knows_ring = True
        self._unreachable.clear()
        self._urls = broker_urls(self.contact.given, status)
        self.contact.learn(self._urls.values())

    def learn_topic(self, details: TopicDetails, now_s: float) -> None:
        """In place of what was known of this topic."""
        takers = sorted(
            filter(_takes_records, details.partition_details),
            key=lambda partition: int(partition.token_start),
        )
        if takers:
            self._topics[details.topic.name] = _Topic(
                [int(taker.token_start) for taker in takers],
                [taker.partition for taker in takers],
                [taker.leader for taker in takers],
                now_s,
            )

    def expire_topic(self, topic: str) -> None:
        """It has other partitions now, or other leaders: good enough until it is learned again."""
        if topic in self._topics:
            self._topics[topic] = replace(self._topics[topic], is_expired=True)

    def forget_topic(self, topic: str) -> None:
        """A broker that was to lead it is away: ask any."""
        self._topics.pop(topic, None)

    def knows(self, topic: str) -> bool:
        """Whether `partition_of` can answer."""
        return topic in self._topics

    def distinguishes_brokers(self, topic: str) -> bool:
        """Whether `destination` is not the same for all tokens, for what is known."""
        return bool(self._urls) and topic in self._topics

    def is_current(self, topic: str, now_s: float) -> bool:
        """False: ask a broker before more is sent. On a ring of one what is known stays so."""
        known = self._topics.get(topic)
        if known is None or known.is_expired:
            return False
        return not self._urls or now_s < known.learned_s + AGE_S_MAX

    def partition_of(self, topic: str, token: int) -> int | None:
        """None: nothing is known of this topic."""
        known = self._topics.get(topic)
        return None if known is None else known.partitions[_index(known, token)]

    def destination(self, topic: str, token: int) -> str:
        """The URL of the broker that leads the token's partition, or one that passes it on."""
        known = self._topics.get(topic)
        leader = None if known is None else known.leaders[_index(known, token)]
        url = self.url if leader is None else self._urls.get(leader, self.url)
        return self.url if url in self._unreachable else url

    def mark_unreachable(self, url: str) -> None:
        """Until the ring is learned again its partitions go by way of another broker."""
        self._unreachable.add(url)
        self.contact.turn_from(url)


def broker_urls(url: str, status: RingStatus) -> dict[int, str]:
    """By ordinal: brokers by name and port, where no ports are known at that of `url`.

    Brokers that share both are behind one address, and those of a ring of one need none: empty.
    """
    ports: Sequence[int | None] = status.ports or [None] * len(status.names)
    places = list(zip(status.names, ports, strict=False))
    if status.length == 1 or len(set(places)) < len(places):
        return {}
    return {ordinal: _at(url, host, port) for ordinal, (host, port) in enumerate(places)}


def shows_stale_routing(error: TailraceError) -> bool:
    """Whether a refusal says that others lead, or that there are other partitions."""
    return isinstance(error, ProblemError) and (
        error.status == 421 or error.type in ("not-leader", "partition-not-found")
    )


def _takes_records(partition: PartitionDetails) -> bool:
    """Sealed ones have children; a damaged one still owns its tokens, and refuses them."""
    return partition.state != "sealed" and not partition.children


def _index(topic: _Topic, token: int) -> int:
    return max(bisect_right(topic.starts, token) - 1, 0)


def _at(url: str, host: str, port: int | None) -> str:
    """The same scheme at another host and port, None: that of `url`."""
    parts = urlsplit(url)
    name = f"[{host}]" if ":" in host else host
    port = parts.port if port is None else port
    return f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")
