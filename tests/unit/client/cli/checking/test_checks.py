"""What `tailrace doctor` makes of what it sees: states, and remedies."""

import dataclasses
import resource
from typing import Any

import pytest

from tailrace import __version__
from tailrace.cli.checking.check import FAILED, OK, SIGNS, WARNING, Check
from tailrace.cli.checking.checks import checked_ranges, java_check, open_files_check, ring_checks
from tailrace.cli.checking.group_checks import lag_check, loss_checks
from tailrace.errors import ProblemError
from tailrace.protocol.group_values import GroupInfo
from tailrace.protocol.ring_values import RangeDetails, RingDetails, RingMetadata
from tailrace.values import Ring, RingStatus
from tests.support.ring.rings import BROKER

URL = "http://127.0.0.1:9250"
GIBIBYTE = 1024**3
STATUS = RingStatus(
    length=1,
    names=("127.0.0.1",),
    producer_port=9251,
    producer_binary_port=0,
    consumer_port=9252,
    ring=Ring("local", "0b", __version__, 1, 0, 0, 1),
    now_us=0,
    brokers=(BROKER,),
)


def checks_of(status: RingStatus, skew_us: int = 0) -> dict[str, Check]:
    return {
        ring_check.name: ring_check
        for ring_check in ring_checks(URL, status, skew_us=skew_us, damaged={})
    }


def of_broker(**changed: object) -> dict[str, Check]:
    broker = dataclasses.replace(BROKER, **changed)  # type: ignore[arg-type]
    return checks_of(dataclasses.replace(STATUS, brokers=(broker,)))


def test_a_healthy_broker_is_all_ok() -> None:
    checks = checks_of(STATUS)

    assert {check.state for check in checks.values()} == {OK}
    assert list(checks) == [
        "broker",
        "version",
        "clock",
        "partitions",
        "disk",
        "O_DIRECT",
        "durable write",
    ]
    assert checks["disk"].detail == "10G of 100G used"
    assert set(SIGNS) == {OK, WARNING, FAILED}


@pytest.mark.parametrize(
    ("name", "changed", "state", "detail"),
    [
        ("partitions", {"damaged": 2}, FAILED, "2 damaged: restore"),
        ("partitions", {"quarantined": 3}, FAILED, "3 ranges of offsets quarantined: restore"),
        ("disk", {"disk_used_bytes": 85 * GIBIBYTE}, WARNING, "85G of 100G used (85%): free some"),
        ("disk", {"disk_used_bytes": 95 * GIBIBYTE}, FAILED, "(95%): free some, or enlarge it"),
        ("disk", {"disk_bytes": None, "disk_used_bytes": None}, FAILED, "cannot reach its data"),
        ("O_DIRECT", {"direct_io": False}, WARNING, "missing"),
        ("durable write", {"durable_write_ms": 25.0}, WARNING, "25.0 ms for a block: each"),
        ("durable write", {"durable_write_ms": None}, WARNING, "not measured"),
    ],
)
def test_what_is_wrong_with_a_broker_comes_with_what_to_do(
    name: str, changed: dict[str, object], state: str, detail: str
) -> None:
    check = of_broker(**changed)[name]

    assert check.state == state
    assert detail in check.detail


@pytest.mark.parametrize(
    ("skew_us", "state"),
    [(0, OK), (-1_000_000, OK), (1_000_001, WARNING), (-3_600_000_000, WARNING)],
)
def test_a_clock_may_be_a_second_off(skew_us: int, state: str) -> None:
    check = checks_of(STATUS, skew_us)["clock"]

    assert check.state == state
    assert ("NTP" in check.detail) == (state == WARNING)


def test_another_version_is_a_warning() -> None:
    ring = dataclasses.replace(STATUS.ring, version="9.9.9")
    check = checks_of(dataclasses.replace(STATUS, ring=ring))["version"]

    assert check.state == WARNING
    assert check.detail == f"9.9.9, and this client is {__version__}: install the same"


def test_brokers_of_a_larger_ring_are_distinguished_and_one_that_is_missing_is_wrong() -> None:
    other = dataclasses.replace(BROKER, ordinal=1, damaged=1)
    checks = checks_of(dataclasses.replace(STATUS, length=3, brokers=(BROKER, other)))

    assert checks["ring"] == Check(FAILED, "ring", "1 of 3 brokers do not answer")
    assert checks["broker 0 partitions"].state == OK
    assert checks["broker 1 partitions"].state == FAILED


@pytest.mark.parametrize(
    ("version", "state"),
    [("17.0.15", OK), ("21", OK), ("11.0.2", WARNING), ("1.8.0_292", WARNING), (None, WARNING)],
)
def test_spark_needs_java_17(version: str | None, state: str) -> None:
    check = java_check(version)

    assert check.state == state
    assert ("set JAVA_HOME" in check.detail) == (state == WARNING)


@pytest.mark.parametrize(
    ("limit", "state"),
    [(1_024, WARNING), (10_239, WARNING), (10_240, OK), (resource.RLIM_INFINITY, OK)],
)
def test_a_broker_needs_files(limit: int, state: str) -> None:
    check = open_files_check(limit)

    assert check.state == state
    assert ("ulimit -n 10240" in check.detail) == (state == WARNING)


def group_of(
    name: str, *, state: str = "idle", lag: int | None, oldest: str | None, lost: int = 0
) -> GroupInfo:
    members = 2 if state == "active" else 0
    return GroupInfo(name, state, members, ("t",), lag, oldest, lost)


NOW_US = 1_795_255_763_114_502  # 2026-11-21T10:09:23.114502Z
TWO_HOURS_AGO = "2026-11-21T08:00:00.000000Z"
LAST_DAY = "2026-11-20T09:00:00.000000Z"
JUST_NOW = "2026-11-21T10:05:00.000000Z"
LATE = group_of("billing", lag=1204, oldest=TWO_HOURS_AGO)


@pytest.mark.parametrize(
    ("groups", "state", "detail"),
    [
        ([], OK, "none"),
        ([group_of("a", state="active", lag=9, oldest=JUST_NOW)], OK, "1 group, none lags"),
        ([group_of("a", lag=0, oldest=None)] * 2, OK, "2 groups, none lags"),
        ([LATE], WARNING, "1 group lags 2h: billing (1,204 events unread, no consumers): start"),
        (
            [LATE, group_of("spark:9f3c", state="spark", lag=1, oldest=LAST_DAY)],
            WARNING,
            "2 groups lag up to 1d: spark:9f3c (1 event unread, spark), billing (1,204 events",
        ),
        (
            [group_of("a", state="active", lag=None, oldest=TWO_HOURS_AGO)],
            WARNING,
            "1 group lags 2h: a (unread events, 2 consumers): start what reads, or forget",
        ),
        ([LATE] * 5, WARNING, "billing (1,204 events unread, no consumers) and 2 more: start"),
        ([group_of("a", lag=1, oldest="2026-11-21T11:00:00.000000Z")], OK, "1 group, none lags"),
    ],
)
def test_a_group_whose_oldest_unread_record_is_old_is_a_warning(
    groups: list[GroupInfo], state: str, detail: str
) -> None:
    check = lag_check(groups, now_us=NOW_US)

    assert (check.state, check.name) == (state, "groups")
    assert detail in check.detail


@pytest.mark.parametrize(
    ("lost", "details"),
    [
        ({}, []),
        ({"a": 0}, []),
        ({"a": 0, "og": 2}, ["1 group lost 2 records to retention or damage: og: keep records"]),
        (
            {"a": 1, "b": 2, "c": 3, "d": 4000},
            ["4 groups lost 4,006 records to retention or damage: d, c, b and 1 more: keep"],
        ),
    ],
)
def test_groups_that_lost_records_to_retention_are_a_warning(
    lost: dict[str, int], details: list[str]
) -> None:
    groups = [group_of(name, lag=0, oldest=None, lost=count) for name, count in lost.items()]
    checks = loss_checks(groups)

    assert [(each.state, each.name) for each in checks] == [(WARNING, "retention")] * len(details)
    for check, detail in zip(checks, details, strict=True):
        assert check.detail.startswith(detail)


class RingClient:
    """Of broker 0 of a ring of three, which answers, or cannot, for what is committed."""

    url = URL

    def __init__(self, error: ProblemError | None = None) -> None:
        self._error = error

    def ring(self, *, consistent: bool = False) -> RingDetails:
        """With every range led, as this broker has last heard it."""
        if consistent and self._error is not None:
            raise self._error
        ranges = tuple(
            RangeDetails(each, "0", "0", 1, each, (0, 1, 2), (), "open") for each in range(3)
        )
        metadata = RingMetadata(1, None, (0, 1, 2), (), 1, 1)
        return RingDetails("r", "member", "id", 3, 3, 3, metadata, (), ranges, None)


@pytest.mark.parametrize(
    ("error_type", "detail"),
    [
        (
            "not-agreed",
            "not known which have a leader: not within 5 s; start the voters that are away "
            "(tailrace ring status names them), else try again",
        ),
        ("not-ready", "No: not within 5 s"),
    ],
)
def test_ranges_that_the_voters_do_not_confirm_are_not_called_led(
    error_type: str, detail: str
) -> None:
    error = ProblemError(type=error_type, title="No", status=503, detail="not within 5 s")
    client: Any = RingClient(error)

    assert checked_ranges(client, STATUS) == Check(FAILED, "ranges", detail)


@pytest.mark.parametrize(
    ("names", "heard", "silent"),
    [
        (("a", "b", "c"), (True, True), "range 1 (broker 1), range 2 (broker 2)"),
        (("a", "a", "a"), (True, False), "range 2 (broker 2)"),
        (("a", "a", "a"), (True, True), None),
    ],
    ids=["nobody answers", "behind one address, and one is down", "behind one address"],
)
def test_only_a_leader_that_was_asked_or_is_not_heard_is_silent(
    names: tuple[str, ...], heard: tuple[bool, bool], silent: str | None
) -> None:
    others = (
        dataclasses.replace(BROKER, ordinal=ordinal, up_seconds=None, alive=is_heard)
        for ordinal, is_heard in enumerate(heard, 1)
    )
    status = dataclasses.replace(STATUS, length=3, names=names, brokers=(BROKER, *others))
    client: Any = RingClient()

    check = checked_ranges(client, status)
    if silent is None:
        assert check == Check(OK, "ranges", "3 ranges, none without a leader")
    else:
        assert check.state == FAILED
        assert check.detail.startswith(f"the leader of {silent} does not answer")
