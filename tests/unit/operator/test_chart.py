"""The chart as YAML; and as Helm sees it, where there is one: on the PATH, or by KUBELAB."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace_operator.api.spec import parse_cluster_spec, parse_topic_spec
from tailrace_operator.app.settings import Settings
from tailrace_operator.kube.served import LEASE_NAME

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/tailrace"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
QUICKSTART = ROOT / "examples/quickstart.yaml"
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
PARSERS = {"StreamCluster": parse_cluster_spec, "Topic": parse_topic_spec}


def template(name: str) -> str:
    return (CHART / "templates" / name).read_text()


def helm_command() -> list[str]:
    if found := shutil.which("helm"):
        return [found]
    if kubelab := os.environ.get("KUBELAB"):
        return [kubelab, "helm"]
    pytest.skip("needs helm: on the PATH, or KUBELAB=/path/to/kubelab")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*helm_command(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def rendered(*arguments: str) -> list[dict[str, Any]]:
    done = helm("template", "tailrace", str(CHART), "--namespace", "tailrace-system", *arguments)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def only(documents: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [
        document
        for document in documents
        if document["kind"] == kind and document["metadata"]["name"].endswith(name)
    ]
    return found


# --- files ----------------------------------------------------------------------------------------


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_schema_knows_every_value_and_no_other() -> None:
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)
    for name, value in VALUES.items():
        known = SCHEMA["properties"][name].get("properties")
        if known is not None and isinstance(value, dict):
            assert set(known) == set(value), name


def test_crds_are_links_to_the_files_of_the_chart() -> None:
    links = sorted((ROOT / "crds").iterdir())

    assert [link.resolve() for link in links] == sorted((CHART / "files/crds").iterdir())
    assert [str(link.readlink()) for link in links] == [
        f"../helm/tailrace/files/crds/{link.name}" for link in links
    ]


def test_variables_of_the_deployment_are_settings_of_the_operator() -> None:
    names = re.findall(r"TAILRACE_OPERATOR_(\w+)", template("deployment.yaml"))

    assert names
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_notes_show_the_quickstart() -> None:
    assert QUICKSTART.read_text() in template("NOTES.txt")


@pytest.mark.parametrize("path", [QUICKSTART, *EXAMPLES], ids=lambda path: path.name)
def test_examples_are_good_specs(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))

    assert documents
    for document in documents:
        assert document["apiVersion"] == "tailrace.dev/v1alpha1"
        spec = PARSERS[document["kind"]](document)
        image = getattr(spec, "image", None)
        assert image is None or image.endswith(f":{VERSION}")


def test_no_role_of_the_operator_has_a_wildcard() -> None:
    roles = yaml.safe_load((CHART / "files/roles.yaml").read_text())
    rules = [rule for name in ("served", "cluster", "release") for rule in roles[name]]

    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
    (secrets,) = [rule for rule in rules if "secrets" in rule["resources"]]
    assert secrets["verbs"] == ["get", "list", "watch", "create"]


def test_of_the_leases_of_a_namespace_only_one_can_be_changed() -> None:
    rules = yaml.safe_load((CHART / "files/roles.yaml").read_text())["served"]

    leases = [(rule["verbs"], rule.get("resourceNames")) for rule in rules if is_of_leases(rule)]

    assert leases == [(["get", "patch"], [LEASE_NAME]), (["create"], None)]


def is_of_leases(rule: dict[str, Any]) -> bool:
    return "leases" in rule["resources"]


# --- Helm -----------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_helm_finds_nothing_to_complain_of() -> None:
    done = helm("lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(60)
def test_the_operator_runs_with_no_more_than_it_needs() -> None:
    deployment = only(rendered(), "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]

    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert {container[probe]["httpGet"]["port"] for probe in container if "Probe" in probe} == {
        "http"
    }


@pytest.mark.timeout(60)
def test_images_have_the_version_of_the_chart_unless_another_is_asked_for() -> None:
    def images(*arguments: str) -> tuple[str, str]:
        pod = only(rendered(*arguments), "Deployment")["spec"]["template"]["spec"]
        env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        return pod["containers"][0]["image"], env["TAILRACE_OPERATOR_BROKER_IMAGE"]

    assert images() == (f"tailrace/operator:{VERSION}", f"tailrace/broker:{VERSION}")
    assert images("--set", "image.tag=a,brokerImage.repository=r.example:5000/b") == (
        "tailrace/operator:a",
        f"r.example:5000/b:{VERSION}",
    )


@pytest.mark.timeout(60)
def test_it_has_rights_in_the_whole_cluster_or_in_the_namespaces_that_are_named() -> None:
    everywhere, named = rendered(), rendered("--set", "watchNamespaces={a,b}")
    rules = yaml.safe_load((CHART / "files/roles.yaml").read_text())

    assert only(everywhere, "ClusterRole", "-tailrace")["rules"] == rules["served"]
    assert only(everywhere, "ClusterRoleBinding", "-tailrace")["roleRef"]["name"].endswith(
        "-tailrace"
    )
    assert only(everywhere, "Role")["rules"] == rules["release"]
    bindings = [each for each in named if each["kind"] == "RoleBinding"]
    assert [binding["metadata"]["namespace"] for binding in bindings] == [
        "a",
        "b",
        "tailrace-system",
    ]
    assert [each["kind"] for each in named].count("ClusterRoleBinding") == 1
    env = only(named, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TAILRACE_OPERATOR_NAMESPACES", "value": "a,b"} in env


@pytest.mark.timeout(60)
def test_a_first_cluster_is_made_after_its_kind_is_known_and_stays() -> None:
    asked = ["--set", "cluster.enabled=true,cluster.spec.brokers=1"]
    first = only(rendered(*asked), "StreamCluster")
    later = only(
        rendered(*asked, "--api-versions", "tailrace.dev/v1alpha1/StreamCluster"), "StreamCluster"
    )

    assert first["spec"] == later["spec"] == {"brokers": 1}
    assert first["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep",
        "helm.sh/hook": "post-install,post-upgrade",
        "meta.helm.sh/release-name": "tailrace",
        "meta.helm.sh/release-namespace": "tailrace-system",
    }
    assert later["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "StreamCluster" not in [each["kind"] for each in rendered()]


@pytest.mark.timeout(60)
def test_the_release_brings_the_crds_as_they_are_in_the_project() -> None:
    installed = [each for each in rendered() if each["kind"] == "CustomResourceDefinition"]

    assert installed == [
        yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").iterdir())
    ]


@pytest.mark.timeout(60)
def test_without_crds_and_roles_of_users_there_are_none() -> None:
    documents = rendered("--set", "crds.install=false,rbac.aggregate=false")

    assert "CustomResourceDefinition" not in [document["kind"] for document in documents]
    assert not any("aggregate" in json.dumps(document["metadata"]) for document in documents)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "value",
    [
        "replicas=2",
        "image.repository=a:tag",
        "logLevel=trace",
        "cluster.name=1st",
        "crds.install=x",
    ],
)
def test_a_bad_value_is_refused_by_its_name(value: str) -> None:
    done = helm("template", "tailrace", str(CHART), "--set", value)

    assert done.returncode != 0
    assert value.partition("=")[0].split(".")[0] in done.stderr
