"""A Spark job in the cluster, submitted as the example says, reads and aggregates a topic."""

import json
from collections import defaultdict
from statistics import mean

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.resources import flights, found, parsed, stream_cluster, topic, url_of
from tests.e2e.spark import Spark
from tests.support.spark.spark import HAS_SPARK

EVENTS = 5000


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not HAS_SPARK, reason="spark-submit needs Java and pyspark on this machine")
def test_a_submitted_job_aggregates_a_topic(
    kubernetes: Kubernetes, client: ClientPod, spark: Spark
) -> None:
    found(kubernetes, stream_cluster(brokers=3), topic("flights"))
    lines, url = flights(EVENTS), url_of(kubernetes)
    produce = ["produce", "flights", "--file", "-", "--key", ".origin"]
    client.show(url, *produce, given="\n".join(lines))

    measures = ["--group-by", ".origin", "--count", "--avg", ".delayMinutes"]
    job = ["aggregate", "--url", url, "--topic", "flights", *measures, "--top", "10000"]
    printed = spark.submit(*job, "--output", "json")
    (array,) = (line for line in printed if line.startswith("[{"))
    groups = json.loads(array)
    for group in groups[:5]:
        kubernetes.say(f"{group}")
    spark.kubernetes.show("get", "pods")

    assert {each["origin"]: each["count"] for each in groups} == counts_of(lines)
    averages = {each["origin"]: each["avg_delayMinutes"] for each in groups}
    assert averages == pytest.approx(averages_of(lines))


def counts_of(lines: list[str]) -> dict[str, int]:
    """How many flights each airport has."""
    return {origin: len(delays) for origin, delays in _delays(lines).items()}


def averages_of(lines: list[str]) -> dict[str, float]:
    """The mean delay of each airport, in minutes."""
    return {origin: mean(delays) for origin, delays in _delays(lines).items()}


def _delays(lines: list[str]) -> dict[str, list[int]]:
    delays: dict[str, list[int]] = defaultdict(list)
    for flight in parsed(lines):
        delays[flight["origin"]].append(flight["delayMinutes"])
    return delays
