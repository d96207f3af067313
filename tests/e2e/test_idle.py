"""What the operator costs when all is well."""

import json

import pytest

from tests.e2e.client_pod import PROGRAMS
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import Operator
from tests.e2e.resources import stream_cluster
from tests.e2e.sigkill import restarts_of

CLUSTERS = 20
MEASURED_S = 120  # each is looked at once
RSS_MIB_MIN = 30  # less means a different process
RSS_MIB_MAX = 200  # the chart gives it 256
TINY = {"requests": {"cpu": "5m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}
TINY_SETTINGS = {"journalSize": "8Mi", "cacheSize": "1Mi", "ioThreads": 1}


@pytest.mark.timeout(1200)
def test_the_cost_of_twenty_clusters_that_are_well(
    kubernetes: Kubernetes, operator: Operator
) -> None:
    names = [f"ring-{number}" for number in range(CLUSTERS)]
    rings = [stream_cluster(name, resources=TINY, settings=TINY_SETTINGS) for name in names]
    kubernetes.apply(*rings)
    for condition in ("Ready", "Progressing=False"):
        wanted = f"--for=condition={condition}"
        kubernetes.kubectl("wait", "trc", "--all", wanted, "--timeout=900s", timeout_s=910)
    kubernetes.say(f"{CLUSTERS} clusters are Ready")
    assert {name: restarts_of(kubernetes, f"{name}-0") for name in names} == dict.fromkeys(names, 0)

    program = (PROGRAMS / "usage.py").read_text()
    (pod,) = operator.pods()
    command = ["exec", pod, "--", "python", "-c", program, str(MEASURED_S)]
    reported = operator.kubernetes.kubectl(*command, timeout_s=MEASURED_S + 60)
    usage = json.loads(reported)

    kubernetes.show("get", "trc")
    kubernetes.say(
        f"operator with {CLUSTERS} idle clusters over {MEASURED_S} s:"
        f" {usage['cpuPercent']} % of a core, {usage['rssMiB']} MiB RSS"
    )
    assert RSS_MIB_MIN < usage["rssMiB"] < RSS_MIB_MAX
