"""Whether a live object is what was asked for, and what makes it so again.

`drift` compares every wanted field, others may be there: the API server fills in defaults, sorts
nothing, and writes quantities in its own way: 1024Mi comes back as 1Gi. `exact` allows nothing
else, for parts in which a field that somebody adds does harm.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

_POD = "spec.template.spec"
# Lists that are merged by the name of their items; others are replaced as a whole.
_ITEM_NAMES = {
    "metadata.ownerReferences": "uid",
    "spec.ports": "port",
    f"{_POD}.containers": "name",
    f"{_POD}.containers.env": "name",
    f"{_POD}.containers.ports": "containerPort",
    f"{_POD}.containers.volumeMounts": "mountPath",
    f"{_POD}.imagePullSecrets": "name",
    f"{_POD}.schedulingGates": "name",
    f"{_POD}.volumes": "name",
}
_QUANTITIES = re.compile(r"\.(limits|requests)\.|\.sizeLimit$")
_PORTS = re.compile(r"\.(port|targetPort)$")
_INDEX = re.compile(r"\[[^]]*\]")
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?"
)
_UNITS = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


class Difference(NamedTuple):
    """A path, as in `spec.replicas`, and the two values there; None: it is absent."""

    path: str
    wanted: Any = None
    live: Any = None


def drift(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Difference | None:
    """The first wanted field that is absent or another."""
    return _in_mapping("", wanted, live)


def exact(path: str, wanted: Any, live: Any) -> Difference | None:
    """The first difference of any kind, between what the API server writes in the same way."""
    if wanted == live:
        return None
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        found = (exact(f"{path}.{name}", wanted.get(name), live.get(name)) for name in wanted)
        added = (exact(f"{path}.{name}", None, live[name]) for name in live if name not in wanted)
        return next(filter(None, (*found, *added)), None)
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        names = [each.get("name") for each in wanted if isinstance(each, Mapping)]
        for each in live:
            name = each.get("name") if isinstance(each, Mapping) else None
            if name is not None and name not in names:
                return Difference(f"{path}[{name}]", None, each)
        if len(wanted) == len(live):
            pairs = enumerate(zip(wanted, live, strict=True))
            return next(filter(None, (exact(f"{path}[{i}]", *pair) for i, pair in pairs)), None)
    return Difference(path, wanted, live)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch from `old` to `new` (RFC 7396); empty: they are the same."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


def quantity(text: object) -> Fraction | None:
    """A quantity of Kubernetes as a number: "0.5" and "500m" are one half. None: it is none."""
    match_ = _QUANTITY.fullmatch(str(text))
    if match_ is None:
        return None
    unit = match_[2] or ""
    factor = _UNITS[unit] if unit in _UNITS else Fraction(f"1{unit}")
    return Fraction(match_[1]) * factor


def _in_value(path: str, wanted: Any, live: Any) -> Difference | None:
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return _in_mapping(f"{path}.", wanted, live)
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        name = _ITEM_NAMES.get(_INDEX.sub("", path))
        return (
            _in_items(path, wanted, live) if name is None else _in_named(path, name, wanted, live)
        )
    return None if _is_same(path, wanted, live) else Difference(path, wanted, live)


def _in_mapping(
    prefix: str, wanted: Mapping[str, Any], live: Mapping[str, Any]
) -> Difference | None:
    for name, value in wanted.items():
        path = f"{prefix}{name}"
        if name not in live:
            if _is_empty(value):
                continue  # the API server leaves out what is empty
            return Difference(path, value)
        found = _in_value(path, value, live[name])
        if found is not None:
            return found
    return None


def _in_items(path: str, wanted: Sequence[Any], live: Sequence[Any]) -> Difference | None:
    if len(wanted) != len(live):
        return Difference(path, wanted, live)
    pairs = enumerate(zip(wanted, live, strict=True))
    differences = (_in_value(f"{path}[{index}]", *pair) for index, pair in pairs)
    return next(filter(None, differences), None)


def _in_named(
    path: str, name: str, wanted: Sequence[Any], live: Sequence[Any]
) -> Difference | None:
    by_name = {item.get(name): item for item in live}
    for item in wanted:
        item_path = f"{path}[{item[name]}]"
        if item[name] not in by_name:
            return Difference(item_path, item[name], _renamed(item, name, live))
        found = _in_value(item_path, item, by_name[item[name]])
        if found is not None:
            return found
    return None


def _renamed(item: Mapping[str, Any], name: str, live: Sequence[Any]) -> Any:
    """What an item that is missing is called now: a port has a name beside its number."""
    others = (each.get(name) for each in live if each.get("name") == item.get("name", ""))
    return next(others, None)


def _is_same(path: str, wanted: Any, live: Any) -> bool:
    if wanted == live and isinstance(wanted, bool) == isinstance(live, bool):
        return True
    if _PORTS.search(path):
        return str(wanted) == str(live)
    if _QUANTITIES.search(path):
        value = quantity(wanted)
        return value is not None and value == quantity(live)
    return False


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | tuple | str) and not value)
