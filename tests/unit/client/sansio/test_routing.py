"""Which broker a key's records go to, by what brokers reported."""

from dataclasses import replace

from tailrace.errors import ConnectionFailedError, ProblemError
from tailrace.sansio.routing import AGE_S_MAX, Routing, shows_stale_routing
from tests.support.ring.rings import partition, ring, topic

URL = "http://a:9250"
HALF = 2**62


TWO_LEADERS = topic(partition(0, -(2**63), 0), partition(1, 0, 1), partition(2, HALF, None))


def test_what_is_not_known_goes_to_the_url_that_was_given() -> None:
    routing = Routing(URL)

    assert routing.destination("t", 0) == URL
    assert routing.partition_of("t", 0) is None
    assert not routing.knows("t")
    assert not routing.is_current("t", 0.0)


def test_on_a_ring_of_one_everything_goes_to_it_and_what_is_known_stays_current() -> None:
    routing = Routing(URL)
    routing.learn_ring(ring("elsewhere"))
    routing.learn_topic(topic(partition(0, -(2**63), 0), partition(1, 0, 0)), 0.0)

    assert {routing.destination("t", token) for token in (-(2**63), -1, 0, HALF)} == {URL}
    assert [routing.partition_of("t", token) for token in (-(2**63), -1, 0, 2**63 - 1)] == [
        0,
        0,
        1,
        1,
    ]
    assert routing.is_current("t", 10 * AGE_S_MAX)


def test_a_key_s_records_go_to_the_leader_of_its_partition() -> None:
    routing = Routing(URL)
    routing.learn_ring(ring("a", "b", "c"))
    routing.learn_topic(TWO_LEADERS, 0.0)

    assert routing.destination("t", -1) == "http://a:9250"
    assert routing.destination("t", 0) == routing.destination("t", HALF - 1) == "http://b:9250"
    assert routing.destination("t", HALF) == URL  # nobody leads it now
    assert routing.is_current("t", AGE_S_MAX - 1)
    assert not routing.is_current("t", AGE_S_MAX)


def test_another_broker_takes_the_place_of_the_one_that_was_given_when_it_is_away() -> None:
    routing = Routing(URL)
    assert not Routing(URL).knows_ring
    routing.learn_ring(ring("a", "b", "c"))
    routing.learn_topic(TWO_LEADERS, 0.0)
    routing.mark_unreachable(URL)

    assert routing.knows_ring
    assert routing.url == "http://b:9250"
    assert routing.destination("t", -1) == routing.destination("t", HALF) == "http://b:9250"
    routing.mark_unreachable("http://c:9250")
    assert routing.url == "http://b:9250"
    routing.mark_unreachable("http://b:9250")
    routing.mark_unreachable("http://c:9250")
    assert routing.url == URL


def test_the_only_broker_that_is_known_is_asked_again() -> None:
    routing = Routing(URL)
    routing.mark_unreachable(URL)

    assert routing.url == routing.destination("t", 0) == URL


def test_brokers_that_share_a_name_are_one_address() -> None:
    routing = Routing(URL)
    routing.learn_ring(ring("b", "b", "b"))
    routing.learn_topic(TWO_LEADERS, 0.0)

    assert routing.destination("t", 0) == URL


def test_brokers_of_one_host_are_distinguished_by_their_ports() -> None:
    routing = Routing("http://127.0.0.1:9250")
    routing.learn_ring(replace(ring("127.0.0.1", "127.0.0.1"), ports=(9250, 9260)))
    routing.learn_topic(TWO_LEADERS, 0.0)

    assert routing.distinguishes_brokers("t")
    assert not routing.distinguishes_brokers("u")
    assert routing.destination("t", 0) == "http://127.0.0.1:9260"
    routing.forget_topic("t")
    routing.forget_topic("t")
    assert routing.destination("t", 0) == "http://127.0.0.1:9250"


def test_an_ipv6_address_is_written_as_urls_have_it() -> None:
    routing = Routing("https://events")
    routing.learn_ring(ring("::1", "::2"))
    routing.learn_topic(TWO_LEADERS, 0.0)

    assert routing.destination("t", 0) == "https://[::2]"


def test_a_broker_that_cannot_be_reached_is_gone_around_until_the_ring_is_learned_again() -> None:
    routing = Routing(URL)
    routing.learn_ring(ring("a", "b"))
    routing.learn_topic(TWO_LEADERS, 0.0)
    routing.mark_unreachable("http://b:9250")
    around = routing.destination("t", 0)
    routing.learn_ring(ring("a", "b"))

    assert around == URL
    assert routing.destination("t", 0) == "http://b:9250"


def test_sealed_partitions_take_no_records_and_damaged_ones_keep_their_tokens() -> None:
    routing = Routing(URL)
    routing.learn_topic(
        topic(
            partition(0, -(2**63), 0, "sealed", (1, 2)),
            partition(2, 0, 0, "damaged"),
            partition(1, -(2**63), 0),
        ),
        0.0,
    )

    assert [routing.partition_of("t", token) for token in (-1, 0)] == [1, 2]


def test_what_is_stale_is_used_until_it_is_learned_again() -> None:
    routing = Routing(URL)
    routing.learn_topic(TWO_LEADERS, 0.0)
    routing.expire_topic("t")
    routing.expire_topic("unknown")
    is_current = routing.is_current("t", 0.0)
    routing.learn_topic(TWO_LEADERS, 1.0)

    assert not is_current
    assert routing.knows("t")
    assert routing.is_current("t", 1.0)


def test_a_refusal_reports_that_others_lead() -> None:
    moved = ProblemError(type="not-leader", title="no", status=421, retriable=True)
    full = ProblemError(type="disk-full", title="no", status=507)

    assert shows_stale_routing(moved)
    assert not shows_stale_routing(full)
    assert not shows_stale_routing(ConnectionFailedError(URL, "reset"))
