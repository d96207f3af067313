"""What is said of a difference between what is wanted and what is there; sizes. Pure."""

import re
from collections.abc import Mapping

from tailrace_operator.plan.drift import Difference
from tailrace_operator.plan.names import SETTINGS_HASH

_TEMPLATE = re.compile(r"^spec\.template\.spec\.(containers\[(broker|0)\]\.)?")
_PORT = re.compile(r"^spec\.ports\[([0-9]+)\]$")
_VALUE_CHARACTERS_MAX = 60
_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def size_text(size_bytes: int) -> str:
    """0, 812, 3.2Mi: at most one digit behind the point."""
    size, units = float(size_bytes), iter(_UNITS)
    unit = ""
    while round(size, 1) >= 1024:
        size, unit = size / 1024, next(units)
    return f"{size:.1f}".removesuffix(".0") + unit


def changed_words(difference: Difference) -> str:
    """`image 0.1.0 → 0.1.1`: from what is there to what is wanted."""
    path, wanted, live = difference
    name = _named(path)
    if name == "image" and _repository(wanted) == _repository(live):
        wanted, live = (str(each).rpartition(":")[2] for each in (wanted, live))
    before, after = ("", "") if name == "settings" else (_text(live), _text(wanted))
    return f"{name} {before} → {after}" if before and after else name


def restored_words(difference: Difference) -> str:
    """`restored spec.type ClusterIP, was changed by hand to NodePort`."""
    path, wanted, live = difference
    if wanted is None:
        return f"removed {path}, was added by hand"
    port = _PORT.match(path)
    name = "port" if port else path
    what = f"restored {name} {_text(wanted)}".rstrip()
    if live is None:
        return f"{what}, was removed by hand"
    return f"{what}, was changed by hand{f' to {_text(live)}' if _text(live) else ''}"


def _named(path: str) -> str:
    return "settings" if path.endswith(SETTINGS_HASH) else _TEMPLATE.sub("", path)


def _text(value: object) -> str:
    """Empty: it is too long to be said."""
    if value is None or isinstance(value, Mapping | list | tuple):
        return ""
    text = str(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else ""


def _repository(image: object) -> str:
    return str(image).rpartition(":")[0]
