"""docs/metrics.md against the code; `pytest --rewrite` writes the page again."""

import asyncio
import re
from pathlib import Path

import pytest

from tailrace_broker.app.metrics import metrics_text
from tailrace_broker.model.errors import CorruptPartitionError
from tailrace_broker.model.group import Confirmation, Subscription, TopicPartition
from tailrace_broker.model.topic import TopicSettings
from tests.support.broker.brokers import open_broker, started_broker
from tests.support.broker.metrics import families_of, page_families
from tests.support.storage.storage import Appends
from tests.support.waits import until

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"
HEAD = (
    "# Metrics\n\n"
    "Of `http://HOST:9253/metrics`, Prometheus' text format. Made from"
    " [`app/metrics.py`](../broker/tailrace_broker/app/metrics.py); those of the process come from"
    " the Prometheus client, on Linux alone.\n"
    "Counters count from the start of the process, but for a group's lost records. Labels are the"
    " version's, `group`, of the two metrics that each group has, `topic`, of the first"
    " `TAILRACE_TOPIC_METRICS_MAX` topics by name, `le`, a bucket's upper bound in seconds, and"
    " `follower`, the ordinal of a broker with copies of ranges that this one leads; a topic's"
    " partitions are named by `GET /v1/topics/{topic}`, a group's by `GET /v1/groups/{group}`.\n\n"
    "| metric | type | unit | meaning |\n|---|---|---|---|\n"
)
UNITS = ("bytes", "seconds")


def page_of(text: str) -> str:
    """A row each family, in its order."""
    rows = []
    for name, (kind, meaning) in families_of(text).items():
        unit = next((unit for unit in UNITS if re.search(rf"_{unit}(_total)?$", name)), "")
        rows.append(f"| `{name}` | {kind} | {unit} | {meaning} |\n")
    return HEAD + "".join(rows)


async def text_of(root: Path) -> str:
    async with started_broker(root) as broker:
        return (await metrics_text(broker, connection_count=0)).decode()


def test_the_page_says_what_the_code_says(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    page = page_of(asyncio.run(text_of(tmp_path)))
    if pytestconfig.getoption("rewrite"):
        PAGE.write_text(page)

    assert PAGE.read_text() == page
    assert page_families(PAGE.read_text()) == families_of(asyncio.run(text_of(tmp_path)))


def test_names_keep_prometheus_rules(tmp_path: Path) -> None:
    """https://prometheus.io/docs/practices/naming/"""
    for name, (kind, meaning) in families_of(asyncio.run(text_of(tmp_path))).items():
        assert re.fullmatch(r"(tailrace|process)(_[a-z]+)+", name)
        assert name.endswith("_total") == (kind == "counter")
        assert not re.search(r"_(ms|us|kb|mb|milliseconds|count|sum|bucket)(_total)?$", name)
        assert meaning
        assert name.endswith("_info") or "_info" not in name


def value_of(text: str, name: str) -> float:
    (value,) = re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(value)


async def test_a_disk_that_does_not_answer_has_no_size(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        text = (await metrics_text(broker, connection_count=0)).decode()
    assert str(value_of(text, "tailrace_disk_bytes")) == "nan"
    assert str(value_of(text, "tailrace_disk_used_bytes")) == "nan"


async def test_the_metrics_follow_what_is_stored(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        before = (await metrics_text(broker, connection_count=0)).decode()
        assert value_of(before, "tailrace_ready") == 0
        assert str(value_of(before, "tailrace_durable_write_seconds")) == "nan"

        await broker.start()
        await broker.create_topic("t", TopicSettings(partitions_per_range=2))
        log = broker.hosted("t").log_of(0)
        await Appends(log).batch([b"0"])
        await log.spilled()
        waiting = asyncio.create_task(log.wait_beyond(1))
        await asyncio.sleep(0)
        text = (await metrics_text(broker, connection_count=0)).decode()
        waiting.cancel()

    wanted = {
        "ready": 1,
        "topics": 1,
        "partitions": 2,
        "sealed_partitions": 0,
        "damaged_partitions": 0,
        "stored_bytes": 4096,
        "waiting_reads": 1,
        "log_writes_total": 1,
        "log_write_errors_total": 0,
        "log_appended_batches_total": 1,
        "journal_writes_total": 1,
        "pending_bytes": 0,
        "open_segments": 1,
        "log_disk_reads_total": 0,
    }
    assert {name: value_of(text, f"tailrace_{name}") for name in wanted} == wanted
    assert value_of(text, "tailrace_log_write_seconds_total") > 0
    assert value_of(text, "tailrace_durable_write_seconds") > 0
    assert value_of(text, "tailrace_disk_bytes") > value_of(text, "tailrace_disk_used_bytes") > 0


async def test_a_poll_that_waits_at_many_logs_is_one_read(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=4))
        await broker.groups.register(Subscription("c", "g", ("t",)))
        log = broker.hosted("t").log_of(0)
        polling = asyncio.create_task(broker.groups.poll("c", Confirmation(0), 60_000))
        reading = asyncio.create_task(log.wait_beyond(0))
        await until(lambda: len(log.waiters) == 2)
        text = (await metrics_text(broker, connection_count=0)).decode()
        polling.cancel()
        reading.cancel()

    assert value_of(text, "tailrace_waiting_reads") == 2


async def test_topics_have_metrics_of_their_own_up_to_a_bound(tmp_path: Path) -> None:
    async with started_broker(tmp_path, topic_metrics_max=2) as broker:
        for name in ("c", "a", "b"):
            await broker.create_topic(name, TopicSettings(partitions_per_range=2))
        hosted = broker.hosted("a")
        hosted.counts.produced_events = 3
        for group in ("g", "h"):
            await broker.groups.register(Subscription(group, group, ("a",), "startFromEarliest"))
        log = hosted.log_of(0)
        await Appends(log).batch([b"0", b"1"])
        await log.spilled()
        text = (await metrics_text(broker, connection_count=0)).decode()
        undamaged, hosted.logs[1] = hosted.logs[1], CorruptPartitionError("made up")
        damaged = (await metrics_text(broker, connection_count=0)).decode()
        hosted.logs[1] = undamaged

    assert set(re.findall(r'topic="(\w+)"', text)) == {"a", "b"}
    wanted = {
        'tailrace_topic_produced_events_total{topic="a"}': 3,
        'tailrace_topic_stored_bytes{topic="a"}': 4096,
        'tailrace_topic_stored_bytes{topic="b"}': 0,
        'tailrace_topic_lag_records{topic="a"}': 2,
        "tailrace_brokers": 1,
    }
    assert {name: value_of(text, name) for name in wanted} == wanted
    assert 'tailrace_topic_lag_records{topic="b"}' not in text
    assert str(value_of(damaged, 'tailrace_topic_lag_records{topic="a"}')) == "nan"


async def test_a_histogram_counts_each_duration_in_all_buckets_from_its_own_on(
    tmp_path: Path,
) -> None:
    async with started_broker(tmp_path) as broker:
        for duration_s in (0.0004, 0.001, 0.0011, 60.0):
            broker.counters.produce_seconds.add(duration_s)
        text = (await metrics_text(broker, connection_count=0)).decode()

    buckets = re.findall(r'^tailrace_produce_seconds_bucket\{le="(\S+)"\} (\S+)$', text, re.M)
    assert [(le, float(count)) for le, count in buckets[:3]] == [
        ("0.0005", 1),
        ("0.001", 2),
        ("0.002", 3),
    ]
    assert buckets[-2:] == [("10.0", "3.0"), ("+Inf", "4.0")]
    assert value_of(text, "tailrace_produce_seconds_count") == 4
    assert value_of(text, "tailrace_produce_seconds_sum") == pytest.approx(60.0025)


async def test_a_group_is_reported_with_its_lag_and_what_it_lost(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=2))
        hosted = broker.hosted("t")
        for consumer_id, group in (("c1", "g"), ("c2", "g"), ("c3", 'other "g"')):
            wanted = Subscription(consumer_id, group, ("t",), "startFromEarliest")
            await broker.groups.register(wanted)
        log = hosted.log_of(0)
        await Appends(log).batch([b"0", b"1", b"2"])
        found = broker.groups.view("g").group
        owner = found.owners[TopicPartition(hosted.topic.topic_id, 0)]
        poll = await broker.groups.poll(owner, Confirmation(0), 0)
        number = await broker.groups.deliver(poll, [2])
        await broker.groups.commit(owner, Confirmation(number))
        found.lost = 7
        text = (await metrics_text(broker, connection_count=0)).decode()
        undamaged, hosted.logs[1] = hosted.logs[1], CorruptPartitionError("made up")
        damaged = (await metrics_text(broker, connection_count=0)).decode()
        hosted.logs[1] = undamaged

    lag, lost = "tailrace_group_lag_records", "tailrace_group_lost_records_total"
    other = r'{group="other \\"g\\""}'
    wanted_values = {
        "tailrace_groups": 2,
        "tailrace_group_members": 3,
        lag + '{group="g"}': 1,
        lag + other: 3,
        lost + '{group="g"}': 7,
        lost + other: 0,
        "tailrace_group_polls_total": 1,
        "tailrace_group_delivered_records_total": 2,
        "tailrace_group_commits_total": 1,
    }
    assert {name: value_of(text, name) for name in wanted_values} == wanted_values
    assert str(value_of(damaged, lag + '{group="g"}')) == "nan"
