"""A Spark job in the cluster, submitted as the example says, reads and aggregates a topic."""

import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.provider import ROOT, VERSION
from tests.e2e.resources import flights, found, parsed, stream_cluster, topic, url_of
from tests.support.spark.spark import HAS_SPARK

EVENTS = 5000
JOB_S_MAX = 600.0
EXAMPLE = "examples/spark-on-kubernetes"


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not HAS_SPARK, reason="spark-submit needs Java and pyspark on this machine")
def test_a_submitted_job_aggregates_a_topic(kubernetes: Kubernetes, client: ClientPod) -> None:
    image = f"{kubernetes.provider.image('tailrace/spark')}:{VERSION}"
    kubernetes.provider.build("Dockerfile.spark", image)
    kubernetes.say(f"{image} is built from Dockerfile.spark")
    found(kubernetes, stream_cluster(brokers=3), topic("flights"))
    lines, url = flights(EVENTS), url_of(kubernetes)
    produce = ["produce", "flights", "--file", "-", "--key", ".origin"]
    client.show(url, *produce, given="\n".join(lines))

    spark = kubernetes.elsewhere("spark")  # the example's namespace
    spark.show("apply", "--filename", f"{EXAMPLE}/rbac.yaml")
    measures = ["--group-by", ".origin", "--count", "--avg", ".delayMinutes"]
    job = ["aggregate", "--url", url, "--topic", "flights", *measures, "--top", "10000"]
    printed = submit(kubernetes, image, [*job, "--output", "json"])
    (array,) = (line for line in printed.splitlines() if line.startswith("[{"))
    groups = json.loads(array)
    for group in groups[:5]:
        kubernetes.say(f"{group}")
    spark.show("get", "pods")
    spark.kubectl("delete", "pods", "--field-selector=status.phase==Succeeded", "--wait=false")

    assert {each["origin"]: each["count"] for each in groups} == counts_of(lines)
    averages = {each["origin"]: each["avg_delayMinutes"] for each in groups}
    assert averages == pytest.approx(averages_of(lines))


def submit(kubernetes: Kubernetes, image: str, job: list[str]) -> str:
    """By the example's script; what the driver printed."""
    script = f"{EXAMPLE}/submit.sh"
    kubernetes.say(f"$ {shlex.join([script, *job])}")
    done = subprocess.run(
        [ROOT / script, *job],
        cwd=ROOT,
        env={
            **os.environ,
            **kubernetes.provider.environment,
            "IMAGE": image,
            "KUBECTL": shlex.join(kubernetes.provider.command("kubectl")),
            "SPARK_SUBMIT": str(Path(sys.executable).with_name("spark-submit")),
        },
        capture_output=True,
        text=True,
        timeout=JOB_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    kubernetes.say("the job has succeeded")
    return done.stdout


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
