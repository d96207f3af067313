"""Pydantic's JSON schemas -> the structural schemas of CRDs: no references, no `anyOf`, bounds."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_INT32_MAX = 2**31 - 1
_INT_OR_STRING = "x-kubernetes-int-or-string"
_DROPPED = {"title", "additionalProperties", "$defs"}
_ORDER = ("description", "type", "format", "enum", "default", "required", "properties")


def structural(model: type[BaseModel]) -> Schema:
    """The schema of a part of a resource."""
    document = model.model_json_schema(by_alias=True)
    return _plain(document, document.get("$defs", {}))


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    whole = _resolved(schema, definitions)
    if _INT_OR_STRING in whole:
        return {name: each for name, each in whole.items() if name != "title"}
    plain = {name: each for name, each in whole.items() if name not in _DROPPED}
    if "description" in plain:
        plain["description"] = " ".join(plain["description"].split())
    if "default" in plain and (default := _given(plain.pop("default"))) not in (None, {}, []):
        plain["default"] = default
    if "properties" in whole:
        plain["properties"] = {
            name: _plain(property_, definitions) for name, property_ in whole["properties"].items()
        }
        if "required" not in whole and any(
            "default" in property_ for property_ in plain["properties"].values()
        ):
            plain.setdefault("default", {})
    elif isinstance(each := whole.get("additionalProperties"), Mapping):
        plain["additionalProperties"] = _plain(each, definitions)
    elif "items" in whole:
        plain["items"] = _plain(whole["items"], definitions)
        plain.setdefault("x-kubernetes-list-type", "atomic")
    elif whole.get("type") == "integer":
        is_small = abs(whole.get("maximum", 2**63)) <= _INT32_MAX
        plain["format"] = "int32" if is_small else "int64"
    return {name: plain[name] for name in sorted(plain, key=_place)}


def _place(name: str) -> int:
    """What says most of a field comes first; the rest as it came."""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _given(default: Any) -> Any:
    """Without what is the same as nothing."""
    if not isinstance(default, Mapping):
        return default
    given = {name: _given(each) for name, each in default.items()}
    return {name: each for name, each in given.items() if each not in (None, {}, [])}


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Without `$ref`, and without the choice of null: a field that may be absent is not null."""
    whole = dict(schema)
    if reference := whole.pop("$ref", None):
        whole = {**_resolved(definitions[reference.rsplit("/", 1)[1]], definitions), **whole}
    if "anyOf" in whole and _INT_OR_STRING not in whole:
        (choice,) = [each for each in whole.pop("anyOf") if each != {"type": "null"}]
        whole = {**_resolved(choice, definitions), **whole}
    return whole
