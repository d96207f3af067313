"""`examples/spark-on-kubernetes`: its parts fit together; that they work, a cluster shows."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace.spark.audits import __file__ as spark_file

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "spark-on-kubernetes"
RBAC: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "rbac.yaml").read_text()))
SUBMIT = (FOLDER / "submit.sh").read_text()
TEMPLATE: dict[str, Any] = yaml.safe_load((FOLDER / "podtemplate.yaml").read_text())


def names_of(kind: str) -> set[str]:
    """The objects of one kind that rbac.yaml makes."""
    return {each["metadata"]["name"] for each in RBAC if each["kind"] == kind}


def test_each_account_has_its_role_and_a_binding_of_both() -> None:
    bindings = [each for each in RBAC if each["kind"] == "RoleBinding"]

    assert names_of("ServiceAccount") == names_of("Role") == {"submitter", "spark"}
    assert {binding["roleRef"]["name"] for binding in bindings} == names_of("Role")
    for binding in bindings:
        assert [subject["name"] for subject in binding["subjects"]] == [binding["roleRef"]["name"]]


def test_all_is_in_the_namespace_that_jobs_are_submitted_to() -> None:
    namespaces = {each["metadata"].get("namespace") for each in RBAC if each["kind"] != "Namespace"}

    assert namespaces == names_of("Namespace") == {"spark"}
    assert set(re.findall(r"namespace[= ](\w+)", SUBMIT)) == {"spark"}


def test_no_role_allows_everything() -> None:
    rules = [rule for each in RBAC for rule in each.get("rules", [])]

    assert rules
    assert [rule for rule in rules if "*" in [*rule["resources"], *rule["verbs"]]] == []


def test_the_accounts_that_are_used_exist() -> None:
    used = re.findall(r"create token (\w+)|driver\.serviceAccountName=(\w+)", SUBMIT)

    assert {name for pair in used for name in pair if name} == names_of("ServiceAccount")


def test_pods_meet_the_restricted_standard() -> None:
    spec = TEMPLATE["spec"]
    [container] = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in spec["volumes"]}


def test_the_job_and_the_folder_of_jobs_are_those_of_the_image() -> None:
    [job] = re.findall(r"^    set -- (\w+)", SUBMIT, re.MULTILINE)
    link = '/lib/python3*/site-packages/tailrace/spark/jobs)" "$1/jobs"'

    assert (Path(spark_file).parent / "jobs" / f"{job}.py").is_file()
    assert "local:///opt/tailrace/jobs/$job.py" in SUBMIT
    assert link in (ROOT / "docker" / "trim_spark.sh").read_text()


@pytest.mark.parametrize(
    "script",
    [FOLDER / "submit.sh", *sorted((ROOT / "docker").glob("*.sh"))],
    ids=lambda path: path.name,
)
def test_a_script_is_well_formed_and_may_be_run(script: Path) -> None:
    shell = shutil.which("sh")

    assert shell is not None
    subprocess.run([shell, "-n", script], check=True)
    assert script.stat().st_mode & 0o111 == 0o111
