"""Spark jobs in the cluster, submitted as `examples/spark-on-kubernetes` says."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.kubernetes import Document, Kubernetes, Running, started
from tests.e2e.provider import ROOT
from tests.e2e.resources import is_ready

EXAMPLE = "examples/spark-on-kubernetes"
NAMESPACE = "spark"  # the example's
JOB_S_MAX = 600.0
LINES_SHOWN = 200
DRIVERS = "spark-role=driver"
# `spark_conf` mounts it.
CLAIM: Document = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
FILES, CHECKPOINT = "/data/files", "/data/checkpoint"
EVERY_S = 2


@dataclass(frozen=True)
class Spark:
    """Submits jobs; `settings`: variables of the environment besides those that the example has."""

    kubernetes: Kubernetes  # in the example's namespace
    image: str
    settings: dict[str, str] = field(default_factory=dict)

    def submit(self, *job: str) -> list[str]:
        """The lines that the driver printed, and those of Spark, once it has ended."""
        with self.submitted(*job) as running:
            lines = running.finish(JOB_S_MAX)
        assert running.process.returncode == 0, "".join(lines[-LINES_SHOWN:])
        self.kubernetes.say("the job has succeeded")
        return lines

    @contextmanager
    def submitted(self, *job: str) -> Iterator[Running]:
        """The example's script, which ends with the job."""
        script = f"{EXAMPLE}/submit.sh"
        self.kubernetes.say(f"$ {shlex.join([script, *job])}")
        environment = {
            **self.kubernetes.environment(),
            "IMAGE": self.image,
            "KUBECTL": shlex.join(self.kubernetes.provider.command("kubectl")),
            "SPARK_SUBMIT": str(Path(sys.executable).with_name("spark-submit")),
            **self.settings,
        }
        with started([str(ROOT / script), *job], environment) as running:
            yield running

    def logs(self) -> str:
        """Of drivers that are there."""
        return self.kubernetes.kubectl("logs", "--selector", DRIVERS, "--tail=-1")


@dataclass(frozen=True)
class Archive:
    """A topic as Parquet, on a volume in the example's namespace."""

    spark: Spark
    url: str
    topic: str

    @contextmanager
    def growing(self) -> Iterator[None]:
        """A streaming job writes while the block lasts, and is deleted; another writes the rest."""
        kubernetes, job = self.spark.kubernetes, self._job("--path", FILES)
        with self.spark.submitted("archive", *job, "--every", str(EVERY_S)) as running:
            what = "the driver of the streaming job runs"
            kubernetes.until(self._runs, what, timeout_s=JOB_S_MAX)
            yield
            kubernetes.say(f"the streaming job has written {self._batches()} batches")
            assert self._runs(), self.spark.logs()
            kubernetes.show("delete", "pods", "--selector", DRIVERS)
            running.finish()
        self.spark.submit("archive", *job, "--once")

    def wait_for_batch(self) -> None:
        """The next one that the streaming job writes."""
        before = self._batches()
        what = "the streaming job writes"
        self.spark.kubernetes.until(lambda: self._batches() > before, what, timeout_s=JOB_S_MAX)

    def audited(self) -> str:
        """The line of a job that finds each record of the topic there, once; AssertionError."""
        lines = self.spark.submit("audit", *self._job("--parquet", FILES))
        (line,) = (line.strip() for line in lines if line.startswith("audit: "))
        self.spark.kubernetes.say(line)
        return line

    def _job(self, option: str, folder: str) -> list[str]:
        what = ["--url", self.url, "--topic", self.topic]
        return [*what, option, folder, "--checkpoint", CHECKPOINT]

    def _runs(self) -> bool:
        drivers = self.spark.kubernetes.objects("pods", DRIVERS)
        return bool(drivers) and all(map(is_ready, drivers))

    def _batches(self) -> int:
        drivers = self.spark.kubernetes.objects("pods", DRIVERS)
        assert all(each["status"]["phase"] != "Failed" for each in drivers), self.spark.logs()
        return self.spark.logs().count(f"{self.topic}: batch ")


def archive_of(spark: Spark, url: str, topic: str) -> Archive:
    """Makes its volume."""
    spark.kubernetes.apply(CLAIM)
    settings = {
        "SPARK_CONF_DIR": str(Path(__file__).with_name("spark_conf")),
        "EXECUTORS": "1",  # beside a ring on a small machine
    }
    return Archive(Spark(spark.kubernetes, spark.image, settings), url, topic)
