"""What `tailrace status` prints of a ring, and `tailrace doctor` of its brokers."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tailrace.cli.checking.check import FAILED
from tailrace.cli.checking.checks import ring_checks
from tailrace.cli.lib.ring_rows import filled_in, is_own
from tailrace.cli.verbs import status
from tailrace.cli.verbs.status import copies_note, headline
from tailrace.errors import ConnectionFailedError
from tailrace.values import BrokerStatus, Ring, RingStatus


def row(ordinal: int, *, up_seconds: float | None = None, alive: bool = True) -> BrokerStatus:
    return BrokerStatus(
        ordinal=ordinal,
        token="0",
        leads=4,
        replicates=4,
        damaged=None,
        quarantined=None,
        lag_max=None,
        data_bytes=None,
        disk_used_bytes=None,
        disk_bytes=None,
        direct_io=None,
        durable_write_ms=None,
        incarnation=None,
        started_at=None,
        up_seconds=up_seconds,
        alive=alive,
    )


STATUS = RingStatus(
    length=3,
    names=("127.0.0.1",) * 3,
    producer_port=9251,
    producer_binary_port=0,
    consumer_port=9252,
    ring=Ring("demo", "0b", "0.1.0", 3, 1, None, 7),
    now_us=0,
    brokers=(row(0, up_seconds=5), row(1), row(2, alive=False)),
    ports=(9250, 9260, 9270),
)


class RoutedClient:
    """Broker 1 answers for itself; broker 2 does not."""

    url = "http://127.0.0.1:9250"

    def __init__(self, url: str = url) -> None:
        self._url = url

    def __enter__(self) -> "RoutedClient":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def twin(self, url: str, *, timeout_s: float) -> "RoutedClient":
        return RoutedClient(url)

    def brokers(self) -> Any:
        if self._url != "http://127.0.0.1:9260":
            raise ConnectionFailedError(self._url, "refused")
        return SimpleNamespace(brokers=(row(0), row(1, up_seconds=9)))


def test_each_broker_that_can_be_reached_describes_itself() -> None:
    client: Any = RoutedClient()
    reported = filled_in(client, STATUS)
    alone = replace(STATUS, brokers=STATUS.brokers[:1])

    assert [broker.up_seconds for broker in reported.brokers] == [5, 9, None]
    assert [is_own(broker) for broker in reported.brokers] == [True, True, False]
    assert filled_in(client, alone) is alone
    assert filled_in(client, replace(STATUS, ports=())).brokers == STATUS.brokers


def test_a_ring_without_a_metadata_leader_is_shown() -> None:
    assert headline(STATUS) == (
        "RING demo   brokers 2/3   ranges 3   copies 1   under-replicated 1   "
        "metadata leader none (term 7)   version 0.1.0"
    )


def test_brokers_beside_the_ring_are_not_away(capsys: pytest.CaptureFixture[str]) -> None:
    """One that waits to join, one that has left and holds a sealed range, one that is down."""
    beside = (row(3), row(4), row(5, alive=False))
    larger = replace(STATUS, brokers=(*STATUS.brokers, *beside))
    ranges = [
        SimpleNamespace(id=0, replicas=(0, 1), complete=(0, 4)),
        SimpleNamespace(id=6, replicas=(4,), complete=None),
    ]
    client: Any = SimpleNamespace(
        url=RoutedClient.url,
        brokers=lambda: larger,
        ring=lambda: SimpleNamespace(brokers=3, registrations=larger.brokers, ranges=ranges),
        twin=RoutedClient().twin,
    )
    with patch.object(status, "connect", return_value=nullcontext(client)):
        status.status(output="table", url=None)
    first, _, *lines = capsys.readouterr().out.splitlines()

    assert "  brokers 2/3  " in first
    assert [line.split()[-1] for line in lines[:6]] == ["5s", "9s", "down", "spare", "left", "down"]
    assert lines[-3:] == [
        "broker 3 holds nothing: it can join (tailrace ring grow), or go for good (tailrace ring "
        "drain)",
        "broker 4 has left the ring, and holds ranges 0, 6 until others have whole copies: "
        "tailrace ring drain waits for that",
        "broker 5 holds nothing: it can join (tailrace ring grow), or go for good (tailrace ring "
        "drain)",
    ]


def test_of_one_copy_in_a_ring_of_several_it_is_said_what_that_means() -> None:
    two_copies = replace(STATUS, ring=replace(STATUS.ring, copies=2))

    assert copies_note(STATUS) == [
        "copies 1: each event is on one broker, and cannot be read while that one is away"
    ]
    assert copies_note(two_copies) == []
    assert copies_note(replace(STATUS, length=1)) == []


def test_the_doctor_names_brokers_that_do_not_answer_and_nothing_else_of_them() -> None:
    own = row(0, up_seconds=5)
    checks = {
        ring_check.name: ring_check
        for ring_check in ring_checks(
            "", replace(STATUS, brokers=(own, row(1))), skew_us=0, damaged={}
        )
    }

    assert checks["ring"].state == FAILED
    assert checks["ring"].detail == "2 of 3 brokers do not answer"
    assert not any(name.startswith("broker 1") for name in checks)
