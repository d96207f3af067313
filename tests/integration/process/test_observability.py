"""What a running broker says of itself: its metrics, and its log."""

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from tailrace.sync import Client
from tailrace.wire import JOURNAL_BLOCK_BYTES
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import families_of, page_families

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
# Of a small append, in this order.
WRITES = ["journal.written", "segment.written"]

pytestmark = pytest.mark.integration


def events_of(broker: RunningBroker) -> list[dict[str, object]]:
    """The broker's log, line by line."""
    return [json.loads(line) for line in broker.log_path.read_text().splitlines()]


def test_the_metrics_are_those_of_the_page(shared_broker: RunningBroker) -> None:
    with urlopen(f"http://127.0.0.1:{shared_broker.port + 3}/metrics") as answer:
        text = answer.read().decode()

    assert families_of(text) == page_families(PAGE.read_text())


@pytest.mark.parametrize(("level", "is_reported"), [("debug", True), ("info", False)])
def test_each_write_is_reported_at_debug_alone(
    tmp_path: Path, level: str, is_reported: bool
) -> None:
    with start_broker(tmp_path, log_level=level) as broker:
        with Client(broker.url) as client:
            client.produce("reported", b"1", key="k")
        broker.stop()  # which brings the event from the journal to its segment
        (segment,) = (broker.data_dir / "data").rglob("*.log")
        written = [event for event in events_of(broker) if event["event"] in WRITES]

    assert [event["event"] for event in written] == (WRITES if is_reported else [])
    for event in written:
        assert (event["level"], event["size_bytes"]) == ("debug", JOURNAL_BLOCK_BYTES)
        assert float(str(event["duration_ms"])) > 0
    for event in written[1:]:
        assert event["file"] == str(segment)
        assert (event["base_offset"], event["end_offset"], event["batches"]) == (0, 1, 1)


def test_the_life_of_a_broker_and_its_topics_is_reported(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        with Client(broker.url) as client:
            client.produce("reported", b"1", key="k")
        broker.stop()
        events = [str(event["event"]) for event in events_of(broker)]

    reported = [event for event in events if event != "storage.buffered"]
    assert reported == [
        "broker.recovering",
        "ring.joined",
        "broker.ready",
        "topic.created",
        "broker.stopped",
    ]
