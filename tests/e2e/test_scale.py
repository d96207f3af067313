"""A ring of three brokers grows to six, shrinks to three and grows again, under load."""

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.group import reading
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import Operator, random_ends
from tests.e2e.resources import assert_kept, found, stream_cluster, topic, url_of
from tests.e2e.spark import Spark, archive_of
from tests.support.spark.spark import HAS_SPARK

TOPIC = "load"
SCALED_S_MAX = 300.0
EVENTS_BETWEEN = 200
BROKERS = "app.kubernetes.io/instance=events"
# A step takes seconds: the operator ends before, amid and after each.
LIFE_S_MAX = 5.0
ENDS_BY_COUNT = {6: 4, 3: 4, 4: 2}


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not HAS_SPARK, reason="spark-submit needs Java and pyspark on this machine")
def test_a_ring_grows_and_shrinks_under_load(
    kubernetes: Kubernetes, client: ClientPod, spark: Spark
) -> None:
    found(kubernetes, stream_cluster(brokers=3), topic(TOPIC))
    url = url_of(kubernetes)
    archive = archive_of(spark, url, TOPIC)

    with reading(client, url, TOPIC) as group:
        with archive.growing(), client.load(url, TOPIC) as load:
            archive.wait_for_batch()
            for count in (6, 3):
                with kubernetes.running("get", "trc", "events", "--watch") as watch:
                    scale(kubernetes, count)
                    wait_until_scaled(kubernetes, count)
                    kubernetes.say(f"$ kubectl get trc events --watch\n{''.join(watch.lines())}")
                kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")
                archive.wait_for_batch()
        group.assert_got_all(load)

    kubernetes.show("describe", "trc", "events")
    assert_kept(kubernetes, load, client, url, TOPIC)
    partitions = client.partitions(url, TOPIC).values()
    stored = sum(each["highWatermark"] - each["firstOffset"] for each in partitions)
    whole = f"{len(partitions)} partitions, gaps=0 duplicates=0 unordered_keys=0"
    assert archive.audited() == f"audit: {stored:,} records, {whole}"


@pytest.mark.timeout(1800)
def test_a_ring_scales_however_often_the_operator_ends(
    kubernetes: Kubernetes, client: ClientPod, operator: Operator
) -> None:
    """To four at the end: broker 3 begins empty on the volume that it had before."""
    found(kubernetes, stream_cluster(brokers=3), topic(TOPIC))
    url, ends = url_of(kubernetes), random_ends(kubernetes)

    with client.load(url, TOPIC) as load:
        for count, end_count in ENDS_BY_COUNT.items():
            scale(kubernetes, count)
            for number in range(end_count):
                operator.end(number, ends.uniform(0.0, LIFE_S_MAX))
            wait_until_scaled(kubernetes, count)
        kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")

    kubernetes.show("get", "events", "--field-selector", "involvedObject.kind=StreamCluster")
    assert_kept(kubernetes, load, client, url, TOPIC)


def scale(kubernetes: Kubernetes, count: int) -> None:
    """Ask for so many brokers."""
    kubernetes.show("scale", "trc/events", f"--replicas={count}")


def wait_until_scaled(kubernetes: Kubernetes, count: int) -> None:
    """The ring has so many brokers, there is no other pod, and all is well."""
    what = f"the ring has {count} brokers, and no other pod is there"
    kubernetes.until(lambda: brokers_of(kubernetes) == count, what, timeout_s=SCALED_S_MAX)
    kubernetes.wait("trc/events", "Progressing=False")
    kubernetes.wait("trc/events", "Ready")


def brokers_of(kubernetes: Kubernetes) -> int | None:
    """How many the ring has; None: a pod is missing, or is there still."""
    count: int = kubernetes.get("trc", "events")["status"]["founded"]["brokers"]
    return count if len(kubernetes.objects("pods", BROKERS)) == count else None
