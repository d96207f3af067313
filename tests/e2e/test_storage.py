"""Volumes grow while the ring works, never shrink; deleted ones are replaced, and fill again."""

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.resources import (
    all_are_new,
    assert_kept,
    found,
    is_ready,
    stream_cluster,
    topic,
    uids_of_pods,
    url_of,
)
from tests.e2e.watching import (
    WATCH_PHASES,
    WATCH_PODS,
    away_at_once,
    copies_at_least,
    watch_replicas,
)

TOPIC = "load"
BULK = "bulk"
BULK_MIB = 96  # so that it takes a while until a broker has all of it
EVENTS_BETWEEN = 200


def test_storage_grows_without_a_restart(kubernetes: Kubernetes) -> None:
    found(kubernetes, stream_cluster(brokers=3))
    pods = uids_of_pods(kubernetes)

    kubernetes.apply(stream_cluster(brokers=3, storage={"size": "2Gi"}))
    for ordinal in range(3):
        claim = f"persistentvolumeclaim/data-events-{ordinal}"
        kubernetes.wait(claim, "jsonpath={.status.capacity.storage}=2Gi")
    template = "{.spec.volumeClaimTemplates[0].spec.resources.requests.storage}"
    kubernetes.wait("statefulset/events", f"jsonpath={template}=2Gi")  # what a new broker gets
    kubernetes.wait("trc/events", "Ready")

    kubernetes.show("get", "persistentvolumeclaims")
    assert uids_of_pods(kubernetes) == pods
    smaller = '{"spec": {"storage": {"size": "1Gi"}}}'
    refused = kubernetes.refused("patch", "trc", "events", "--type", "merge", "--patch", smaller)
    assert "storage can grow, not shrink (now 2Gi)" in refused


def test_all_volumes_are_replaced_one_after_the_other_and_no_event_is_lost(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    found(kubernetes, stream_cluster(brokers=3), topic(TOPIC), topic(BULK))
    url = url_of(kubernetes)
    client.fill(url, BULK, BULK_MIB)
    kubernetes.say(f"{BULK_MIB} MiB are stored")

    with client.load(url, TOPIC) as load:
        for ordinal in (1, 0, 2):
            kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")
            with kubernetes.running(*WATCH_PHASES) as watch:
                replace_volume(kubernetes, ordinal)
                # Whatever the order in which the operator sees that it is there, and has all.
                kubernetes.wait("poddisruptionbudget/events", "jsonpath={.spec.maxUnavailable}=1")
                kubernetes.wait("trc/events", "Degraded=False")
                phases = list(dict.fromkeys(line.strip() for line in watch.lines()))
            for phase in phases:
                kubernetes.say(f"STATUS: {phase}")
            disk = f"broker {ordinal}, on a new disk, gets what it lacks from the others"
            assert any(phase.startswith("Catching up: ") and disk in phase for phase in phases)
            assert any(phase == f"Replacing the volume of broker {ordinal}" for phase in phases)
            assert copies(client, url) == [3, 3, 3]
        kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")

    assert len(replacements(kubernetes)) == 3
    assert_kept(kubernetes, load, client, url, TOPIC)
    ends = [each["highWatermark"] for each in client.partitions(url, BULK).values()]
    assert sum(ends) == BULK_MIB * 16
    assert len(client.tailrace(url, "consume", BULK, "--from", "earliest").splitlines()) == sum(
        ends
    )


def test_a_volume_is_replaced_before_brokers_restart_with_other_settings(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    """A claim is deleted and the settings change: no other broker goes before it has all again."""
    found(kubernetes, stream_cluster(brokers=3), topic(TOPIC), topic(BULK))
    url = url_of(kubernetes)
    client.fill(url, BULK, BULK_MIB)

    with (
        client.load(url, TOPIC) as load,
        client.kubernetes.running(*watch_replicas(client, url)) as replicas,
        kubernetes.running(*WATCH_PODS) as pods,
    ):
        kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")
        before, volumes = uids_of_pods(kubernetes), [volume(kubernetes, each) for each in range(3)]
        kubernetes.show("delete", "pvc", "data-events-1", "--wait=false")
        kubernetes.apply(stream_cluster(brokers=3, settings={"ioThreads": 4}))
        kubernetes.until(lambda: all_are_new(kubernetes, before), "all brokers have restarted")
        kubernetes.wait("trc/events", "Progressing=False")
        kubernetes.wait("trc/events", "Degraded=False")
        kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")
        away, fewest = away_at_once(pods), copies_at_least(replicas)

    kubernetes.show("get", "events", "--field-selector", "involvedObject.kind=StreamCluster")
    kubernetes.say(f"brokers away at once: {away}; copies in sync: {fewest} or more")
    assert (away, fewest) == (1, 2)
    is_new = [volume(kubernetes, each) != volumes[each] for each in range(3)]
    assert is_new == [False, True, False]
    (event,) = replacements(kubernetes)
    assert "volume data-events-1 is being deleted" in event
    assert "2 other copies of each event" in event
    assert copies(client, url) == [3, 3, 3]
    assert_kept(kubernetes, load, client, url, TOPIC)


def replace_volume(kubernetes: Kubernetes, ordinal: int) -> None:
    """Delete its claim; returns when the operator has replaced it, and another pod serves."""
    before, uid = volume(kubernetes, ordinal), uids_of_pods(kubernetes)[f"events-{ordinal}"]
    kubernetes.show("delete", "pvc", f"data-events-{ordinal}", "--wait=false")

    def has_another() -> bool:
        pod = kubernetes.find("pod", f"events-{ordinal}")
        return (
            volume(kubernetes, ordinal) not in (None, before)
            and pod is not None
            and pod["metadata"]["uid"] != uid
            and is_ready(pod)
        )

    kubernetes.until(has_another, f"events-{ordinal} serves on another volume")


def volume(kubernetes: Kubernetes, ordinal: int) -> str | None:
    """The PersistentVolume of a broker's claim; None: there is none at the moment."""
    claim = kubernetes.find("pvc", f"data-events-{ordinal}")
    return None if claim is None else claim["spec"].get("volumeName")


def replacements(kubernetes: Kubernetes) -> list[str]:
    """What the operator says of volumes that it has replaced."""
    events = kubernetes.objects("events")
    return [each["message"] for each in events if each["reason"] == "VolumeReplaced"]


def copies(client: ClientPod, url: str) -> list[int]:
    """How many replicas of each range are in sync."""
    ranges = client.ring(url)["ranges"]
    return [sum(not each["ghost"] for each in one["isr"]) for one in ranges]
