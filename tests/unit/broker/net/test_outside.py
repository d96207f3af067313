"""By which addresses brokers are named to clients outside of their network."""

import pytest

from tailrace_broker.model.errors import NotLeaderError, TailraceError, TopicNotFoundError
from tailrace_broker.net.http.problems import seen_from
from tailrace_broker.net.outside import Outside, OutsideUrlError

BY_NAME = Outside.read("https://events-{ordinal}.Example", 0, ("All.example",))
BY_PORT = Outside.read("http://node.example:30250", 1, ())


def not_leader() -> TailraceError:
    inside = "http://events-1.events-brokers.shop.svc:9250"
    return NotLeaderError(f"ask it at {inside}", leader=1, leaderUrl=inside)


def test_brokers_differ_by_name_or_by_port() -> None:
    assert BY_NAME.address_of(2) == ("events-2.example", 443)
    assert BY_NAME.url_of(12) == "https://events-12.example:443"
    assert BY_PORT.url_of(2) == "http://node.example:30252"


@pytest.mark.parametrize(
    ("host", "is_outside"),
    [
        ("events-0.example", True),
        ("events-12.example", True),
        ("all.example", True),
        ("events-x.example", False),
        ("events-0xexample", False),
        ("events-0.events-brokers.shop.svc", False),
        ("", False),
    ],
)
def test_a_host_is_outside_when_a_broker_or_all_have_it(host: str, *, is_outside: bool) -> None:
    assert BY_NAME.has(host) is is_outside


@pytest.mark.parametrize(
    "url",
    [
        "events.example",
        "ftp://events.example:9250",
        "http://:9250",
        "http://events.example:port",
        "http://events.example/path",
        "http://user@events.example",
    ],
)
def test_what_is_no_url_of_brokers_is_refused(url: str) -> None:
    with pytest.raises(OutsideUrlError, match="a URL of each broker"):
        Outside.read(url, 0, ())


def test_a_leader_is_named_as_it_is_reached() -> None:
    inside, outside = not_leader(), seen_from(BY_NAME, not_leader())

    assert seen_from(None, inside) is inside
    assert outside.members == {"leader": 1, "leaderUrl": "https://events-1.example:443"}
    assert outside.detail == "ask it at https://events-1.example:443"
    assert inside.members == not_leader().members


@pytest.mark.parametrize(
    "error",
    [TopicNotFoundError("none"), NotLeaderError("sealed", leader=1)],
    ids=["none", "sealed"],
)
def test_other_errors_stay_as_they_are(error: TailraceError) -> None:
    assert seen_from(BY_NAME, error) is error
