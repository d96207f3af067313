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
from prometheus_client import generate_latest

from tailrace_operator.api.spec import parse_cluster_spec, parse_topic_spec
from tailrace_operator.app.metrics import Metrics
from tailrace_operator.app.settings import Settings
from tailrace_operator.kube.served import LEASE_NAME
from tailrace_operator.plan.names import BROKER_PORTS, selector_labels
from tests.support.broker.metrics import families_of, page_families

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/tailrace"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
QUICKSTART = ROOT / "examples/quickstart.yaml"
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
README = (CHART / "README.md").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
RULES = (CHART / "files/rules.yaml").read_text()
DASHBOARD = (CHART / "files/dashboard.json").read_text()
MONITORING = (
    "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,"
    "metrics.rules.enabled=true,metrics.dashboard.enabled=true,metrics.labels.release=prometheus"
)
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


def values_rows() -> list[str]:
    """Return the rows that helm-docs makes of comments of values.yaml from `# --` on."""
    rows = []
    path: list[str] = []
    said: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            said = [text.removeprefix("# -- ")] if text.startswith("# --") else [*said, text[2:]]
        elif match_ := re.match(r"( *)([\w]+):", line):
            path = [*path[: len(match_[1]) // 2], match_[2]]
            if said:
                rows.append(_row(path, " ".join(said)))
            said = []
    return sorted(rows)


def _row(path: list[str], said: str) -> str:
    value: Any = VALUES
    for name in path:
        value = value[name]
    kind = {bool: "bool", str: "string", list: "list", dict: "object"}[type(value)]
    default = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"| {'.'.join(path)} | {kind} | `{default}` | {said} |"


def test_the_readme_has_the_values_as_helm_docs_writes_them() -> None:
    table = [line for line in README.splitlines() if line.startswith("| ")][1:]

    assert sorted(table) == values_rows()
    assert "Name the namespaces" in README.partition("## Values")[0]


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    of_operator = families_of(generate_latest(Metrics().registry).decode())
    known = {**page_families((ROOT / "docs/metrics.md").read_text()), **of_operator}
    names = {
        f"{name}{suffix}"
        for name, (kind, _) in known.items()
        for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }

    for text in (RULES, DASHBOARD):
        asked = set(re.findall(r"\b(?:tailrace|process)_\w+", text))
        assert len(asked) > 10
        assert asked <= names


def test_each_alert_is_explained_and_links_to_a_section() -> None:
    groups = yaml.safe_load(RULES)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    headings = re.findall(r"^##+ (.+)$", OPERATIONS, re.MULTILINE)
    anchors = {re.sub(r"[^a-z ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert {rule["alert"] for rule in rules} == set(
        re.findall(r"^\| `(Tailrace\w+)` \|", OPERATIONS, re.MULTILINE)
    )
    for rule in rules:
        assert rule["annotations"]["runbook_url"].removeprefix("RUNBOOK#") in anchors, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not (found := shutil.which("promtool")):
        pytest.skip("needs promtool on the PATH")
    command = [found, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.timeout(60)
def test_prometheus_can_read_the_alerts() -> None:
    done = promtool("check", "rules", str(CHART / "files/rules.yaml"))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(60)
def test_alerts_fire_when_and_as_the_rule_tests_say() -> None:
    done = promtool("test", "rules", str(Path(__file__).parent / "alerts.yaml"))

    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_panels_of_the_dashboard_are_at_one_place() -> None:
    panels = json.loads(DASHBOARD)["panels"]
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(taken)) == len(taken)


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
def test_a_digest_says_what_is_pulled_whatever_the_tag() -> None:
    digest = f"sha256:{'0a' * 32}"
    pod = only(
        rendered("--set", f"image.digest={digest},brokerImage.digest={digest}"), "Deployment"
    )
    (container,) = pod["spec"]["template"]["spec"]["containers"]

    assert container["image"] == f"tailrace/operator:{VERSION}@{digest}"
    assert container["env"][0]["value"] == f"tailrace/broker:{VERSION}@{digest}"


@pytest.mark.timeout(60)
def test_a_service_account_that_exists_gets_the_roles() -> None:
    documents = rendered(
        "--set", "serviceAccount.create=false,serviceAccount.name=mine,watchNamespaces={a}"
    )
    subjects = [one["name"] for each in documents for one in each.get("subjects", ())]

    assert "ServiceAccount" not in [each["kind"] for each in documents]
    assert set(subjects) == {"mine"}
    assert only(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


@pytest.mark.timeout(60)
def test_the_operators_pod_is_placed_and_may_have_a_user_of_the_namespaces_range() -> None:
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    documents = rendered(
        "--set", "podSecurityContext.runAsUser=null,podSecurityContext.runAsGroup=null",
        "--set-json", f"topologySpreadConstraints={json.dumps(spread)}",
        "--set-json", 'affinity={"nodeAffinity":{}}',
    )  # fmt: skip
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]

    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert (pod["topologySpreadConstraints"], pod["affinity"]) == (spread, {"nodeAffinity": {}})


@pytest.mark.timeout(60)
def test_monitoring_is_made_when_it_is_asked_for() -> None:
    documents = rendered("--set", MONITORING, "--set", "metrics.rules.runbookUrl=https://a/b.md")
    operator = only(documents, "Deployment")["spec"]["template"]
    service, monitor = only(documents, "Service"), only(documents, "ServiceMonitor")
    brokers = only(documents, "PodMonitor")["spec"]
    rules = only(documents, "PrometheusRule")

    (port,) = service["spec"]["ports"]
    ports = [each["name"] for each in operator["spec"]["containers"][0]["ports"]]
    assert port["targetPort"] in ports
    assert service["spec"]["selector"].items() <= operator["metadata"]["labels"].items()
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    assert brokers["namespaceSelector"] == {"any": True}
    assert brokers["selector"]["matchLabels"].items() <= selector_labels("events").items()
    assert brokers["podMetricsEndpoints"][0]["port"] in BROKER_PORTS
    assert [each["metadata"]["labels"]["release"] for each in (monitor, rules)] == [
        "prometheus"
    ] * 2
    assert "RUNBOOK" not in json.dumps(rules)
    assert "https://a/b.md#alerts" in json.dumps(rules)
    dashboard = only(documents, "ConfigMap")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["tailrace.json"]) == json.loads(DASHBOARD)


@pytest.mark.timeout(60)
def test_only_a_service_of_monitoring_is_made_unasked() -> None:
    named = rendered("--set", f"{MONITORING},watchNamespaces={{a}}")
    monitoring = ("Service", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap")

    assert [each["kind"] for each in rendered() if each["kind"] in monitoring] == ["Service"]
    assert only(named, "PodMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["a"]}


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
        "brokerImage.digest=sha256:1",
        "metrics.interval=often",
    ],
)
def test_a_bad_value_is_refused_by_its_name(value: str) -> None:
    done = helm("template", "tailrace", str(CHART), "--set", value)

    assert done.returncode != 0
    assert value.partition("=")[0].split(".")[0] in done.stderr
