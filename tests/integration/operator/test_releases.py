"""Two releases of the operator that watch one namespace: only one of them serves it."""

import asyncio
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.kube.client import ConflictError, Kube
from tailrace_operator.kube.served import LEASE_NAME, ServedNamespaces
from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.operators import (
    MARKS,
    fake_cluster,
    is_all_ready,
    notes,
    operator_settings,
    run_scenario,
    running_operator,
)

pytestmark = MARKS


def holder(kube: FakeKubernetes, namespace: str = "ns") -> Any:
    lease = kube.find("Lease", LEASE_NAME, namespace)
    return lease and lease["spec"]["holderIdentity"]


def test_a_namespace_is_served_by_one_release_until_that_one_ends() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            first = operator_settings(brokers.url_pattern, lease_name="first", identity="a")
            second = operator_settings(brokers.url_pattern, lease_name="second", identity="b")
            kube.put({"kind": "StreamCluster", "metadata": {"name": "events"}})
            async with running_operator(kube, first):
                await kube.until(lambda: is_all_ready(kube))
                assert holder(kube) == "operators/first"
                async with running_operator(kube, second):
                    await kube.until(lambda: notes(kube, "ServedByAnother"))
                    kube.edit("StreamCluster", "events", {"spec": {"networkPolicy": False}})
                    await kube.until(lambda: kube.find("NetworkPolicy", "events") is None)
                    assert holder(kube) == "operators/first"
                assert holder(kube) == "operators/first", "who waits takes nothing when it goes"
            assert holder(kube) == ""
            (note,) = notes(kube, "ServedByAnother")
            assert "serves this namespace: operators/first holds it; confine one" in note

            async with running_operator(kube, second):
                kube.edit("StreamCluster", "events", {"spec": {"networkPolicy": True}})
                await kube.until(lambda: kube.find("NetworkPolicy", "events") is not None)
                assert holder(kube) == "operators/second"
            assert len(brokers.founded) == 1

    run_scenario(scenario())


def test_what_is_being_deleted_is_let_go_whoever_serves_the_namespace() -> None:
    """Else a namespace would wait for its Topic, when a release that is gone held the Lease."""

    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            kube.put(
                {
                    "kind": "Lease",
                    "metadata": {"name": LEASE_NAME},
                    "spec": {"holderIdentity": "operators/gone", "leaseDurationSeconds": 3600},
                }
            )
            metadata = {"name": "flights", "finalizers": ["tailrace.dev/topic"]}
            spec = {"cluster": "events", "deletionPolicy": "Delete"}
            kube.put({"kind": "Topic", "metadata": metadata, "spec": spec})
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: notes(kube, "ServedByAnother"))
                kube.remove("Topic", "flights")
                await kube.until(lambda: kube.find("Topic", "flights") is None)
            assert holder(kube) == "operators/gone"

    run_scenario(scenario())


def test_many_passes_at_once_ask_once_and_each_namespace_is_for_itself() -> None:
    async def scenario() -> None:
        kube = FakeKubernetes()
        async with kube.served():
            api = Kube(Configuration(host=kube.url), timeout_s=10)
            one = ServedNamespaces(api, release="operators/one", duration_s=180)
            other = ServedNamespaces(api, release="operators/other", duration_s=180)
            try:
                looks = await asyncio.gather(*(one.reason_to_wait("ns") for _ in range(5)))
                assert looks == [None] * 5
                assert [call.verb for call in kube.calls] == ["get", "create"]
                assert await other.reason_to_wait("elsewhere") is None
                assert await other.reason_to_wait("ns") == "operators/one holds it"

                await one.release()
                assert await other.reason_to_wait("ns") is None
                assert await one.reason_to_wait("ns") == "operators/other holds it"
            finally:
                await api.close()

    run_scenario(scenario())


def test_nothing_is_kept_of_a_namespace_that_nobody_asks_about_any_more() -> None:
    async def scenario() -> None:
        kube = FakeKubernetes()
        async with kube.served():
            api = Kube(Configuration(host=kube.url), timeout_s=10)
            served = ServedNamespaces(api, release="operators/one", duration_s=0)
            try:
                assert await served.reason_to_wait("gone") is None
                assert await served.reason_to_wait("ns") is None
                await served.release()
                assert holder(kube, "gone") == "operators/one", "its Lease is free by its age"
                assert holder(kube, "ns") == ""
            finally:
                await api.close()

    run_scenario(scenario())


def test_who_is_overtaken_tries_again() -> None:
    class Overtaken(Kube):
        """Another release takes the Lease between the read and the write."""

        async def create(self, manifest: Any) -> Any:
            await super().create(manifest)
            return await super().create(manifest)

    async def scenario() -> None:
        kube = FakeKubernetes()
        async with kube.served():
            api = Overtaken(Configuration(host=kube.url), timeout_s=10)
            served = ServedNamespaces(api, release="operators/one", duration_s=180)
            try:
                with pytest.raises(ConflictError):
                    await served.reason_to_wait("ns")
            finally:
                await api.close()

    run_scenario(scenario())
