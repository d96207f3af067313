"""Settings of a broker or the operator from environment variables, and what is wrong with them.

Each mistake is one sentence with the variable's name, its value, and what is allowed.
"""

import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tailrace.settings.near_names import close_to

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

Settings = TypeVar("Settings", bound="BaseSettings")

VALUE_CHARACTERS_MAX = 60
# Read by clients, which may run in the same environment.
CLIENT_VARIABLES = ("TAILRACE_URL", "TAILRACE_TOKEN", "TAILRACE_CA_FILE")
# What each topic has, and somebody may take for settings of a broker; by the protocol's names.
TOPIC_SETTINGS = (
    "partitions_per_range",
    "json_check",
    "compression",
    "durability",
    "flush_ms",
    "flush_bytes",
    "linger_ms",
    "linger_bytes",
    "retention_ms",
    "retention_bytes",
    "min_in_sync_replicas",
)
# What Kubernetes sets in a pod for each Service of its namespace: of one that is named `tailrace`,
# TAILRACE_SERVICE_HOST, TAILRACE_PORT=tcp://10.96.0.7:9250, TAILRACE_PORT_9250_TCP_ADDR and others.
_SERVICE_LINK = re.compile(
    r"\w+_SERVICE_HOST|\w+_SERVICE_PORT(_\w+)?|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class WrongSettingsError(Exception):
    """A server cannot start; `mistakes` has a sentence for each."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class Server(NamedTuple):
    """A program with settings by their lower-case names. `others`: what it ignores, by prefix."""

    title: str
    prefix: str
    page: str
    names: tuple[str, ...]
    others: tuple[str, ...] = ()


def read_settings(
    server: Server, kind: type[Settings], environment: MutableMapping[str, str]
) -> Settings:
    """Take the variables of Services that look like settings out of the environment, and read it.

    KUBERNETES_SERVICE_HOST and the like stay: clients in a pod need them. WrongSettingsError.
    """
    from pydantic import ValidationError

    for name in service_links(environment):
        if name.upper().startswith(server.prefix):
            del environment[name]
    mistakes = unknown_settings(server, environment)
    try:
        settings = kind()
    except ValidationError as error:
        mistakes += wrong_settings(server, error.errors(), kind.model_json_schema())
    if mistakes:
        raise WrongSettingsError(mistakes)
    return settings


def service_links(environment: Mapping[str, str]) -> list[str]:
    """The variables that Kubernetes has set for Services: nobody's settings."""
    return [name for name, value in environment.items() if _is_service_link(name, value)]


def unknown_settings(server: Server, environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like a setting and is none; an empty one is none."""
    return [
        f"{name} is no setting of {server.title}{_nearest(server, name)} All are in {server.page}"
        for name, value in sorted(environment.items())
        if value
        and name.upper().startswith(server.prefix)
        and not name.upper().startswith(server.others)
        and name.upper().removeprefix(server.prefix).lower() not in server.names
        and not _is_service_link(name, value)
    ]


def wrong_settings(
    server: Server, errors: Iterable[Mapping[str, Any]], schema: Mapping[str, Any]
) -> list[str]:
    """A sentence for each of pydantic's errors; `schema`: the settings' JSON schema."""
    return [_wrong(server, error, schema["properties"]) for error in errors]


def _wrong(server: Server, error: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    if not error["loc"]:  # of two that do not fit together: the reason names them
        return str(error["ctx"]["error"])
    field = str(error["loc"][0])
    name = f"{server.prefix}{field.upper()}"
    if error["type"] == "missing":
        return f"{name} is not set"
    is_secret = fields[field].get("format") == "password"
    value = "" if is_secret else f' is "{str(error["input"])[:VALUE_CHARACTERS_MAX]}"'
    if error["type"] == "value_error":
        return f"{name}{value}{'' if is_secret else ', which'} {error['ctx']['error']}"
    return f"{name}{value}: give {_allowed(fields[field])}"


def _allowed(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        *first, last = field["enum"]
        return f"{', '.join(first)} or {last}"
    if field["type"] == "boolean":
        return "true or false"
    kind = "a whole number" if field["type"] == "integer" else "a number"
    if "exclusiveMinimum" in field:
        return f"{kind} above {_digits(field['exclusiveMinimum'])}"
    if "minimum" not in field:
        return f"{kind} of {_digits(field['maximum'])} or less" if "maximum" in field else kind
    if "maximum" in field:
        return f"{kind} from {field['minimum']} to {field['maximum']}"
    return f"{kind} of {_digits(field['minimum'])} or more"


def _digits(bound: float) -> str:
    """A setting of seconds has bounds like 3.0."""
    return str(int(bound) if bound == int(bound) else bound)


def _nearest(server: Server, name: str) -> str:
    word = name.upper().removeprefix(server.prefix)
    if any(f"{each}_".startswith(f"{word.lower()}_") for each in TOPIC_SETTINGS):
        return ": each topic has its own (tailrace topic create)."
    known = [each.upper() for each in server.names]
    return close_to(word, known, prefix=server.prefix, end="?") or "."


def _is_service_link(name: str, value: str) -> bool:
    is_address = name.endswith("_PORT") and _ADDRESS.match(value) is not None
    return is_address or _SERVICE_LINK.fullmatch(name) is not None
