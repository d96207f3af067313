import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace_operator.api.spec import (
    InvalidSpecError,
    StreamClusterSpec,
    parse_cluster_spec,
    parse_topic_spec,
)
from tools.crd_kinds import KINDS
from tools.crds import crd, files

ROOT = Path(__file__).parents[3]
BAD_SPECS = ROOT / "tests/golden/bad_specs"
PARSERS = {"StreamCluster": parse_cluster_spec, "Topic": parse_topic_spec}
# What the API server says of one field of a document.
REFUSAL = re.compile(r" is invalid: (spec[^:]*): Invalid value: (?:\"[^\"]*\": )?(.*)")
# What a field is refused for without the others.
IN_OUR_WORDS = re.compile(r": (not an? |a ring has three|a zone is)")
KINDS_BY_NAME = {kind.kind: kind for kind in KINDS}


def version_of(name: str) -> dict[str, Any]:
    (version,) = crd(KINDS_BY_NAME[name])["spec"]["versions"]
    return dict(version)


def schema_of(name: str) -> dict[str, Any]:
    return dict(version_of(name)["schema"]["openAPIV3Schema"])


def schemas_in(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas with their paths, this one first."""
    yield path, schema
    for name, property_ in schema.get("properties", {}).items():
        yield from schemas_in(property_, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from schemas_in(schema[name], f"{path}[]")


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """As the API server sets them."""
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    given = {
        **{
            n: property_["default"] for n, property_ in properties.items() if "default" in property_
        },
        **value,
    }
    return {name: with_defaults(properties.get(name, {}), each) for name, each in given.items()}


def refusals() -> dict[str, str]:
    """What the API server said of each of the bad specs, by the name of its file."""
    text = (ROOT / "tests/golden/bad_specs.txt").read_text()
    _, *parts = re.split(r"^== (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(files()))
def test_what_is_made_from_the_specs_is_up_to_date(pytestconfig: pytest.Config, path: str) -> None:
    made = files()[path]
    if pytestconfig.getoption("rewrite"):
        (ROOT / path).write_text(made)

    assert (ROOT / path).read_text() == made, "python -m tools.crds writes it again"


def test_each_kind_has_its_file_and_there_is_no_other() -> None:
    metadata = [yaml.safe_load(path.read_text())["metadata"] for path in ROOT.glob("crds/*")]

    assert {each["name"] for each in metadata} == {
        "streamclusters.tailrace.dev",
        "topics.tailrace.dev",
    }


def test_helm_keeps_the_crds_when_a_release_goes() -> None:
    for path in ROOT.glob("crds/*"):
        metadata = yaml.safe_load(path.read_text())["metadata"]
        assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS_BY_NAME)
def test_schemas_are_structural(kind: str) -> None:
    for path, schema in schemas_in(schema_of(kind)):
        is_quantity = "x-kubernetes-int-or-string" in schema
        assert is_quantity or schema["type"] in {"object", "array", "string", "integer", "boolean"}
        assert is_quantity or "anyOf" not in schema, path
        assert not {"$ref", "$defs", "title", "const", "prefixItems"} & set(schema), path
        assert not ("properties" in schema and "additionalProperties" in schema), path


@pytest.mark.parametrize("kind", KINDS_BY_NAME)
def test_everything_is_bounded(kind: str) -> None:
    properties = schema_of(kind)["properties"]
    bounds = {"string": "maxLength", "array": "maxItems"}
    for root in ("spec", "status"):
        for path, schema in schemas_in(properties[root], root):
            bound = bounds.get(schema.get("type", ""))
            assert bound is None or bound in schema or "enum" in schema, path
            assert "additionalProperties" not in schema or "maxProperties" in schema, path


@pytest.mark.parametrize("kind", KINDS_BY_NAME)
def test_every_field_says_what_it_is(kind: str) -> None:
    properties = schema_of(kind)["properties"]
    for root in ("spec", "status"):
        for path, schema in schemas_in(properties[root], root):
            assert path.endswith("[]") or schema.get("description"), path


def test_a_name_alone_gets_the_defaults_that_the_operator_would_take() -> None:
    defaulted = with_defaults(schema_of("StreamCluster"), {"metadata": {"name": "events"}})

    assert parse_cluster_spec(defaulted) == StreamClusterSpec()
    assert defaulted["spec"]["brokers"] == 3
    assert defaulted["spec"]["storage"] == {"size": "10Gi"}


def test_what_is_left_to_the_brokers_is_not_filled_in() -> None:
    spec = with_defaults(schema_of("Topic"), {"spec": {"cluster": "events"}})["spec"]

    assert spec == {"cluster": "events", "deletionPolicy": "Retain"}


@pytest.mark.parametrize("kind", KINDS_BY_NAME)
def test_a_rule_has_one_message(kind: str) -> None:
    rules = [
        rule
        for _, schema in schemas_in(schema_of(kind))
        for rule in schema.get("x-kubernetes-validations", ())
    ]

    assert rules
    for rule in rules:
        assert ("message" in rule) != ("messageExpression" in rule)
        assert "\n" not in rule.get("message", "")


def test_only_absence_is_the_same_class_as_absence() -> None:
    storage = schema_of("StreamCluster")["properties"]["spec"]["properties"]["storage"]
    (rule,) = storage["x-kubernetes-validations"]
    absent = set(re.findall(r" : '(.*?)'\)", rule["rule"]))

    assert len(absent) == 1
    with pytest.raises(InvalidSpecError, match=r"^spec\.storage\.storageClassName: not a name"):
        parse_cluster_spec({"spec": {"storage": {"storageClassName": absent.pop()}}})


def test_a_list_that_kubernetes_keys_is_a_set() -> None:
    spec = schema_of("StreamCluster")["properties"]["spec"]["properties"]
    kinds = {
        path: each["x-kubernetes-list-type"]
        for name in spec
        for path, each in schemas_in(spec[name], name)
        if each.get("type") == "array"
    }

    assert kinds == {
        "imagePullSecrets": "set",
        "settings.allowedOrigins": "atomic",
        "zones": "atomic",
        "pod.env": "map",
        "pod.tolerations": "atomic",
        "pod.topologySpreadConstraints": "atomic",
    }


# --- kinds ----------------------------------------------------------------------------------------


def test_columns_are_those_that_people_see() -> None:
    columns = {
        name: [each["name"].upper() for each in version_of(name)["additionalPrinterColumns"]]
        for name in KINDS_BY_NAME
    }

    assert columns == {
        "StreamCluster": ["BROKERS", "READY", "STATUS", "BALANCED", "ZONES", "VERSION", "AGE"],
        "Topic": [
            "CLUSTER",
            "PARTITIONS",
            "RETENTION",
            "DURABILITY",
            "SIZE",
            "READY",
            "REASON",
            "AGE",
        ],
    }


def test_paths_lead_to_fields() -> None:
    for name in KINDS_BY_NAME:
        version = version_of(name)
        paths = [each["jsonPath"] for each in version["additionalPrinterColumns"]]
        paths += version["subresources"].get("scale", {}).values()
        known = {path for path, _ in schemas_in(schema_of(name))}
        ours = {path.partition("[")[0] for path in paths if not path.startswith(".metadata")}
        assert ours <= known


def test_names_are_short_and_in_one_category() -> None:
    names = [crd(kind)["spec"]["names"] for kind in KINDS]

    assert [name["shortNames"] for name in names] == [["trc"], ["trt"]]
    assert [name["categories"] for name in names] == [["tailrace"]] * 2
    assert version_of("StreamCluster")["subresources"]["scale"] == {
        "specReplicasPath": ".spec.brokers",
        "statusReplicasPath": ".status.readyBrokers",
        "labelSelectorPath": ".status.selector",
    }


# --- bad specs ------------------------------------------------------------------------------------


def test_every_bad_spec_has_been_refused() -> None:
    said = refusals()

    assert set(said) == {path.name for path in BAD_SPECS.glob("*.yaml")}
    assert len(said) >= 20
    assert all("is invalid" in each or "strict decoding error" in each for each in said.values())


def test_every_rule_has_a_bad_spec() -> None:
    said = "\n".join(refusals().values())
    kinds_of_quantities = ("not a size from", "not a duration from")
    for name in KINDS_BY_NAME:
        for path, schema in schemas_in(schema_of(name)):
            for rule in schema.get("x-kubernetes-validations", ()):
                text = rule.get("message") or rule["messageExpression"].split("'")[1]
                is_quantity = text.startswith(kinds_of_quantities)
                assert is_quantity or text in said, path


@pytest.mark.parametrize(
    "name", [name for name, said in refusals().items() if IN_OUR_WORDS.search(said)]
)
def test_the_operator_refuses_a_field_in_the_words_of_the_api_server(name: str) -> None:
    document = yaml.safe_load((BAD_SPECS / name).read_text())
    ((field, message),) = REFUSAL.findall(refusals()[name])

    with pytest.raises(InvalidSpecError) as refused:
        PARSERS[document["kind"]](document)

    assert refused.value.field == re.sub(r"\[(.*)\]", r".\1", field)
    assert refused.value.message == message
