"""What a route is, and how a request line finds one: path and query -> typed parameters.

The table of all routes is `net.api.routes`. A route's parameters are a struct: it checks requests
`net.openapi` describes it.
"""

import enum
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Meta

from tailrace_broker.memory.pool import Lease
from tailrace_broker.model.errors import (
    InvalidParameterError,
    MethodNotAllowedError,
    PathNotFoundError,
    TailraceError,
)
from tailrace_broker.net.broker import Broker

PARTITION_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# Longer targets are rare and not worth a place in the cache.
_CACHED_TARGET_BYTES_MAX = 256
_CACHED_TARGETS = 4096
# Of a 64-bit number; longer texts are not even read.
DIGITS_MAX = 19
_AUTHORITY = re.compile(rb"https?://([^/?]*)", re.IGNORECASE)
PUBLIC_PORT_DEFAULT = 9250
# Of a value that an error quotes.
_SHOWN_CHARACTERS_MAX = 40


class Parameters(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of every route's path and query parameters; without fields: it takes none.

    `aliases`: other names of query parameters, with the wire name of the field.
    """

    aliases: ClassVar[Mapping[str, str]] = {}


TopicName = Annotated[str, Meta(description="The topic's name.")]
PartitionId = Annotated[int, Meta(ge=0, le=PARTITION_MAX, description="The partition's id.")]


class Listeners(enum.Flag):
    """The ports that a route is reached at."""

    PUBLIC = enum.auto()
    PRODUCE = enum.auto()
    READ = enum.auto()
    METRICS = enum.auto()


class Kind(enum.Enum):
    """What a request counts as in the metrics."""

    PRODUCE = "produce"
    READ = "read"
    OTHER = "other"


class Call(NamedTuple):
    """A whole request as a handler gets it. `accept` and `content_type` are in lower case."""

    parameters: Any  # of the route's struct
    content_type: str
    accept: str
    body: bytes | bytearray
    headers: Mapping[bytes, bytes] = {}  # Tailrace's own as they came, by name in lower case
    target: bytes = b""  # path and query
    is_forwarded: bool = False  # by another broker: it is for this one alone
    method: str = "GET"
    is_outside: bool = False  # it names a host outside: answers do too


class Response(NamedTuple):
    """An answer: `body` as buffers one after the other, or a stream whose size is not known."""

    body: Sequence[bytes | memoryview] | AsyncIterator[bytes] = ()
    content_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = {}
    lease: Lease | None = None  # of read memory, given back when the answer is sent
    on_lost: Callable[[], None] | None = None  # when the peer goes before all of it is sent


# Answers a request with a whole body, or an error; once, maybe later.
AnswerCallback = Callable[[Response | TailraceError], None]
# Starts at once and calls `AnswerCallback`; requests of one connection may overlap (produce).
Immediate = Callable[[Broker, Call, AnswerCallback], None]
# Runs when all requests of its connection before it are answered.
Handler = Callable[[Broker, Call], Awaitable[Response]]


class BodyForm(NamedTuple):
    """A content type that a route takes; `schema` is checked by the handler."""

    content_type: str
    description: str
    schema: type[msgspec.Struct] | None = None


class AnswerForm(NamedTuple):
    """An answer that is not a problem: a schema by content type, None for what has none."""

    status: int
    description: str
    content: Mapping[str, Any] = {}


class Route(NamedTuple):
    """One method of one path, with `handle` or `immediate`.

    `problems`: those beyond what every request can meet. `is_given_up`: when its peer may
    have gone, since what it answers counts as received; a GET is when the peer has gone for sure.
    `is_admin`: for those who know the ring's secret, when it has one. `handle_at_read`: in place
    of `handle` on the port of PolarStreams' consumers.
    """

    method: str
    path: str
    listeners: Listeners
    summary: str
    answers: Sequence[AnswerForm]
    handle: Handler | None = None
    immediate: Immediate | None = None
    parameters: type[Parameters] = Parameters
    headers: type[Parameters] = Parameters  # those that are no matter of every request
    bodies: Sequence[BodyForm] = ()
    problems: Sequence[type[TailraceError]] = ()
    kind: Kind = Kind.OTHER
    is_body_optional: bool = False
    is_given_up: bool = False
    is_admin: bool = False
    handle_at_read: Handler | None = None

    def at(self, listener: Listeners) -> "Route":
        """The route as this port serves it."""
        is_other = listener is Listeners.READ and self.handle_at_read is not None
        return self._replace(handle=self.handle_at_read) if is_other else self


class Matched(NamedTuple):
    """A route with the parameters of one request, or what is wrong with them."""

    route: Route
    parameters: Parameters | InvalidParameterError
    body_types: tuple[str, ...]  # content types that the route takes; none: it takes no body
    takes_untyped: bool = False  # a body without a content type is JSON


Match = Callable[[bytes, bytes], Matched]


def matcher(
    routes: Sequence[Route], *, public_port: int = PUBLIC_PORT_DEFAULT, takes_untyped: bool = False
) -> Match:
    """A function of method and request target that finds the route among these.

    `public_port`: the one that has all paths. `takes_untyped`: a body without a content type is
    JSON here. PathNotFoundError, MethodNotAllowedError. Short targets are cached: producers repeat
    the same few, a key each.
    """
    by_pattern: dict[re.Pattern[bytes], dict[bytes, _RouteReader]] = defaultdict(dict)
    for route in routes:
        by_pattern[_pattern(route.path)][route.method.encode()] = _RouteReader(route)

    def match(method: bytes, target: bytes) -> Matched:
        path, _, query = _origin_form(target).partition(b"?")
        for pattern, by_method in by_pattern.items():
            match_ = pattern.fullmatch(path)
            if match_:
                reader = by_method.get(b"GET" if method == b"HEAD" else method)
                if reader is None:
                    raise _method_not_allowed(path, by_method)
                parameters: Parameters | InvalidParameterError
                try:
                    parameters = reader.read(match_.groupdict(), query)
                except InvalidParameterError as error:
                    parameters = error
                return Matched(reader.route, parameters, reader.body_types, takes_untyped)
        shown = shortened(path.decode(errors="replace"))
        raise PathNotFoundError(
            f"no path {shown} on this port; port {public_port} lists all paths: GET /docs"
        )

    cached = lru_cache(maxsize=_CACHED_TARGETS)(match)

    def match_cached(method: bytes, target: bytes) -> Matched:
        is_short = len(target) <= _CACHED_TARGET_BYTES_MAX
        return cached(method, target) if is_short else match(method, target)

    return match_cached


def shortened(text: str) -> str:
    """Return the part of a sent value that an error quotes."""
    is_long = len(text) > _SHOWN_CHARACTERS_MAX
    return f"{text[:_SHOWN_CHARACTERS_MAX]}…" if is_long else text


class _RouteReader:
    """Reads the parameters of one route; what its struct says is looked up once."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.body_types = tuple(form.content_type for form in route.bodies)
        self._fields = {
            field.encode_name: _FieldReader(field)
            for field in msgspec.structs.fields(route.parameters)
        }
        self._aliases = route.parameters.aliases

    def read(self, in_path: Mapping[str, bytes], query: bytes) -> Parameters:
        """Path segments and query pairs, percent-decoded, as the route's struct."""
        texts: dict[str, list[str]] = {name: [_decoded(raw)] for name, raw in in_path.items()}
        for pair in filter(None, query.split(b"&")):
            raw_name, _, raw_value = pair.partition(b"=")
            name = _decoded(raw_name)
            name = self._aliases.get(name, name)
            if name not in self._fields:
                known = ", ".join(name for name in self._fields if name not in in_path) or "none"
                raise InvalidParameterError(
                    f'no parameter "{shortened(name)}"; {self.route.method} {self.route.path} '
                    f"takes {known}",
                    parameter=shortened(name),
                )
            texts.setdefault(name, []).append(_decoded(raw_value.replace(b"+", b" ")))
        return self.route.parameters(
            **{
                field.name: field.read(texts.get(name, ()))
                for name, field in self._fields.items()
                if field.is_required or name in texts
            }
        )


class _FieldReader:
    """Reads one parameter: a whole number with bounds, one of some words, a text, or several.

    A bool is one of two words.
    """

    def __init__(self, field: msgspec.structs.FieldInfo) -> None:
        self.name = field.name
        self.is_required = field.required
        self._wire_name = field.encode_name
        info = _bare(msgspec.inspect.type_info(field.type))
        self._is_list = isinstance(info, msgspec.inspect.VarTupleType)
        if isinstance(info, msgspec.inspect.UnionType):  # with None: may be absent
            info = _bare(info.types[0])
        self._info = info

    def read(self, texts: Sequence[str]) -> object:
        """The value of one struct field; InvalidParameterError."""
        if self._is_list:
            return tuple(texts)
        if not texts:
            raise self._error(f"{self._wire_name} is missing")
        if len(texts) > 1:
            raise self._error(f"{self._wire_name} is given twice")
        text = texts[0]
        if isinstance(self._info, msgspec.inspect.IntType):
            return self._number(text, self._info)
        if isinstance(self._info, msgspec.inspect.BoolType):
            return self._flag(text)
        if isinstance(self._info, msgspec.inspect.LiteralType) and text not in self._info.values:
            raise self._wrong(text, " or ".join(map(str, self._info.values)))
        return text

    def _number(self, text: str, info: msgspec.inspect.IntType) -> int:
        assert info.ge is not None
        assert info.le is not None
        if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
            number = int(text)
            if info.ge <= number <= info.le:
                return number
        raise self._wrong(text, f"a whole number from {info.ge} to {info.le}")

    def _flag(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise self._wrong(text, "false or true")
        return text == "true"

    def _wrong(self, text: str, wanted: str) -> InvalidParameterError:
        return self._error(f"{self._wire_name} is {shortened(text)}; it is {wanted}")

    def _error(self, detail: str) -> InvalidParameterError:
        return InvalidParameterError(detail, parameter=self._wire_name)


def _bare(info: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return the type without its metadata."""
    return info.type if isinstance(info, msgspec.inspect.Metadata) else info


def _pattern(path: str) -> re.Pattern[bytes]:
    """ "/v1/topics/{topic}" -> a pattern with a group a parameter."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]*)", re.escape(path)).encode())


def authority_of(target: bytes) -> bytes | None:
    """Return host and port of a target in absolute form; None: it is in another."""
    found = None if target.startswith(b"/") else _AUTHORITY.match(target)
    return None if found is None else found[1]


def _origin_form(target: bytes) -> bytes:
    """Remove scheme and authority, which a proxy may have left in (RFC 9112, 3.2.2)."""
    match_ = _AUTHORITY.match(target)
    if match_ is None:
        return target
    rest = target[match_.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _method_not_allowed(path: bytes, by_method: Mapping[bytes, object]) -> MethodNotAllowedError:
    methods = {*by_method, *([b"HEAD"] if b"GET" in by_method else [])}
    allowed = ", ".join(sorted(method.decode() for method in methods))
    shown = shortened(path.decode(errors="replace"))
    return MethodNotAllowedError(f"{shown} takes {allowed}", allowed=allowed)


def _decoded(raw: bytes) -> str:
    """Bytes that are no UTF-8 stay what they are by surrogates (PEP 383): a key is any bytes."""
    return unquote_to_bytes(raw).decode("utf-8", "surrogateescape")
