from typing import Any

import pytest

from tailrace.spark.progress import progress_line


def progress_of(*sources: dict[str, Any], rows_per_s: float | None = 61203.6) -> dict[str, Any]:
    progress = {"batchId": 3, "durationMs": {"triggerExecution": 412}, "sources": list(sources)}
    return progress if rows_per_s is None else {**progress, "processedRowsPerSecond": rows_per_s}


def source_of(end: Any, latest: Any) -> dict[str, Any]:
    return {"endOffset": end, "latestOffset": latest}


def test_a_line_reports_batch_rate_lag_and_time() -> None:
    source = source_of({"flights": {"0": 10, "1": 5}}, {"flights": {"0": 1210, "1": 9}})

    line = progress_line(progress_of(source))

    assert line == "flights: batch 3, 61,204 rows/s, behind 1,204 events (0.4 s)"


def test_a_partition_that_has_not_joined_yet_counts_as_unread() -> None:
    source = source_of({"flights": {"0": 10}}, {"flights": {"0": 10, "4": 7}})

    assert "behind 7 events" in progress_line(progress_of(source))


def test_topics_of_all_sources_are_named_and_other_sources_left_out() -> None:
    line = progress_line(
        progress_of(
            source_of({"b": {"0": 1}}, {"b": {"0": 3}}),
            source_of(17, 20),
            source_of("not JSON", None),
            source_of({"a": {"0": 1}}, {"a": {"0": 2}}),
        )
    )

    assert line.startswith("a, b: batch 3,")
    assert "behind 3 events" in line


@pytest.mark.parametrize("source", [source_of({}, {}), source_of(None, None)])
def test_a_query_without_a_topic_says_so(source: dict[str, Any]) -> None:
    line = progress_line(progress_of(source, rows_per_s=None))

    assert line == "no topic yet: batch 3, 0 rows/s, behind 0 events (0.4 s)"
