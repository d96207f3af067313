"""Whether a live object is what was asked for: every wanted field is compared, others may be there.

The API server fills in defaults, sorts nothing, and writes quantities in its own way: 1024Mi comes
back as 1Gi. What others add to a list whose items have names is theirs, and stays.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

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


def drift(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """The first path that differs, as in `spec.replicas`, or None."""
    return _in_mapping("", wanted, live)


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


def _in_value(path: str, wanted: Any, live: Any) -> str | None:
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return _in_mapping(f"{path}.", wanted, live)
    if isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        name = _ITEM_NAMES.get(_INDEX.sub("", path))
        return (
            _in_items(path, wanted, live) if name is None else _in_named(path, name, wanted, live)
        )
    return None if _is_same(path, wanted, live) else path


def _in_mapping(prefix: str, wanted: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    for name, value in wanted.items():
        path = f"{prefix}{name}"
        if name not in live:
            if _is_empty(value):
                continue  # the API server leaves out what is empty
            return path
        difference = _in_value(path, value, live[name])
        if difference is not None:
            return difference
    return None


def _in_items(path: str, wanted: Sequence[Any], live: Sequence[Any]) -> str | None:
    if len(wanted) != len(live):
        return path
    pairs = enumerate(zip(wanted, live, strict=True))
    differences = (_in_value(f"{path}[{index}]", *pair) for index, pair in pairs)
    return next(filter(None, differences), None)


def _in_named(path: str, name: str, wanted: Sequence[Any], live: Sequence[Any]) -> str | None:
    by_name = {item.get(name): item for item in live}
    for item in wanted:
        item_path = f"{path}[{item[name]}]"
        if item[name] not in by_name:
            return item_path
        difference = _in_value(item_path, item, by_name[item[name]])
        if difference is not None:
            return difference
    return None


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
