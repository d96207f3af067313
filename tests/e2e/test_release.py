"""The chart's release: upgraded while rings work, uninstalled without any loss."""

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import KINDS, Operator
from tests.e2e.resources import found, stream_cluster, topic, uids_of_pods, url_of


def test_an_upgrade_leaves_brokers_alone(kubernetes: Kubernetes, operator: Operator) -> None:
    found(kubernetes, stream_cluster())
    pods, before = uids_of_pods(kubernetes), operator.pods()

    operator.install("--set", "podAnnotations.upgraded=yes")

    kubernetes.until(lambda: not set(operator.pods()) & set(before), "the operator has a new pod")
    found(kubernetes, topic("after-the-upgrade"))
    kubernetes.wait("trc/events", "Ready")
    assert uids_of_pods(kubernetes) == pods


def test_without_the_operator_rings_work_and_data_stays(
    kubernetes: Kubernetes, client: ClientPod, operator: Operator
) -> None:
    found(kubernetes, stream_cluster(), topic("flights"))
    url = url_of(kubernetes)
    client.show(url, "produce", "flights", given='{"n": 1}\n')

    with operator.away():
        client.show(url, "produce", "flights", given='{"n": 2}\n')
        assert sorted(record["value"]["n"] for record in client.records(url, "flights")) == [1, 2]
        operator.kubernetes.show("get", "crd", *KINDS)
        kubernetes.show("get", "trc,trt,pod,persistentvolumeclaim")

    found(kubernetes, topic("after-the-return"))
    kubernetes.wait("trc/events", "Ready")
    assert sorted(record["value"]["n"] for record in client.records(url, "flights")) == [1, 2]
