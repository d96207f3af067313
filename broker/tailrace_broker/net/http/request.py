"""One request from its first byte until its answer is sent, and the rules for its head.

The parser (llhttp, strict) refuses what breaks the syntax of RFC 9112; here is what it lets pass
and a server behind or before us could read otherwise.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from hmac import compare_digest
from time import monotonic
from types import MappingProxyType

from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tailrace_broker.memory.pool import Lease
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    ExpectationFailedError,
    InvalidParameterError,
    InvalidRequestError,
    SecretRequiredError,
    TailraceError,
    UnsupportedMediaTypeError,
)
from tailrace_broker.net.http.long_line import LongLine
from tailrace_broker.net.http.router import (
    DIGITS_MAX,
    Call,
    Kind,
    Matched,
    Route,
    authority_of,
    shortened,
)

# Looked up once: an enum's member costs a call each time.
_PRODUCE, _READ = Kind.PRODUCE, Kind.READ
_CHUNKED = b"chunked"
_CONTINUE = b"100-continue"
_IDENTITY = b"identity"
_OWN_HEADERS = (
    b"tailrace-producer-id",
    b"tailrace-sequence",
    b"tailrace-delivery",
    b"tailrace-assignment-epoch",
    b"tailrace-redirect",
)


class Exchange:
    """A request and, later, its answer.

    The class holds the defaults, an instance what differs: that costs a quarter of a constructor
    that sets them all.
    """

    has_begun: bool = False
    target: bytes = b""
    is_http_1_0: bool = False
    is_head_only: bool = False
    hosts: int = 0
    host: bytes = b""
    origin: bytes = b""
    fetch_site: bytes = b""
    allowed_origin: bytes = b""  # the origin, if its pages may read the answer
    content_type: bytes = b""
    content_encoding: bytes = b""
    accept: bytes = b""
    expectation: bytes = b""
    authorization: bytes = b""
    own_headers: Mapping[bytes, bytes] = MappingProxyType({})  # Tailrace's, in lower case
    transfer_coding: bytes = b""
    content_bytes: int = 0
    header_bytes: int = 0  # request line and headers that are parsed
    head_bytes: int = 0  # received in a row without an end of the head or a chunk of the body
    is_in_body: bool = False
    matched: Matched | None = None
    body: bytes | bytearray = b""
    received_bytes: int = 0  # of the body
    began_s: float = 0.0  # by the monotonic clock, of a produce request that was started
    refused: TailraceError | None = None
    is_outside: bool = False  # by its host
    long_line: LongLine | None = None  # is looked for in what is discarded
    keeps_alive: bool = True
    memory_bytes: int = 0  # of produce memory, returned with the answer
    lease: Lease | None = None  # of read memory, until the answer is sent
    answer: list[bytes | memoryview] | None = None
    on_lost: Callable[[], None] | None = None  # the answer will not reach the peer

    @property
    def route(self) -> Route:
        """Return the route of a request that was not refused."""
        assert self.matched is not None
        return self.matched.route

    @property
    def has_body(self) -> bool:
        """Return whether the head announces a body."""
        return self.content_bytes > 0 or self.transfer_coding != b""

    def add_to_body(self, chunk: bytes) -> None:
        """Mostly the first chunk is all of it. No list: chunks may be of one byte."""
        if not self.body:
            self.body = chunk
        elif isinstance(self.body, bytearray):
            self.body += chunk
        else:
            self.body = bytearray(self.body + chunk)

    def has_lines(self) -> bool:
        """The body is a line an event."""
        return media_type(self.content_type) == NDJSON_CONTENT_TYPE

    def call(self) -> Call:
        """Return the value that the handler gets."""
        assert self.matched is not None
        return Call(
            self.matched.parameters,
            media_type(self.content_type) or JSON_CONTENT_TYPE,
            media_type_list(self.accept),
            self.body,
            self.own_headers,
            self.target,
            method=self.route.method,
            is_outside=self.is_outside,
        )

    def count(self, counters: Counters, *, is_error: bool) -> None:
        """Count the answer. What found no route is not counted."""
        kind = self.matched.route.kind if self.matched else None
        if kind is _PRODUCE:
            counters.produce_requests += 1
            counters.produce_errors += is_error
            counters.produced_bytes += self.received_bytes
            if self.began_s:
                counters.produce_seconds.add(monotonic() - self.began_s)
        elif kind is _READ:
            counters.read_requests += 1
            counters.read_errors += is_error


def check_head(exchange: Exchange, version: str, method: bytes) -> None:
    """InvalidRequestError when it is not certain what the request is or where it ends."""
    exchange.is_head_only = method == b"HEAD"
    exchange.is_http_1_0 = version == "1.0"
    if version not in ("1.1", "1.0"):
        raise InvalidRequestError(f"HTTP/{version} is not spoken here; send HTTP/1.1")
    if exchange.hosts != 1 and not (exchange.is_http_1_0 and exchange.hosts == 0):
        raise InvalidRequestError("the request has no Host header, or two; send one")
    named = authority_of(exchange.target)
    if named is not None:
        if not named or b"@" in named:
            raise InvalidRequestError("the target names no host, or a user; send host and port")
        exchange.host = named  # counts in place of the header (RFC 9112, 3.2.2)
    if b"#" in exchange.target:
        raise InvalidRequestError("the target has a #; write %23, or leave the fragment out")
    if exchange.content_bytes < 0:
        raise InvalidRequestError(f"Content-Length has more than {DIGITS_MAX} digits")
    is_plainly_chunked = exchange.transfer_coding.lower() == _CHUNKED and not exchange.is_http_1_0
    if exchange.transfer_coding and not is_plainly_chunked:
        shown = shortened(exchange.transfer_coding.decode("latin-1"))
        raise InvalidRequestError(f"Transfer-Encoding {shown} is not taken; chunked alone is")
    if exchange.is_http_1_0:
        exchange.expectation = b""  # it has no 100 (RFC 9110, 10.1.1)


def check_matched(exchange: Exchange) -> None:
    """Check the request.

    InvalidParameterError; ExpectationFailedError; UnsupportedMediaTypeError.
    """
    matched = exchange.matched
    assert matched is not None
    if isinstance(matched.parameters, InvalidParameterError):
        raise matched.parameters.with_traceback(None)  # others of this target share it
    if exchange.expectation and exchange.expectation.lower() != _CONTINUE:
        shown = shortened(exchange.expectation.decode("latin-1"))
        raise ExpectationFailedError(f"Expect {shown} is not known; leave it out")
    known_types = matched.body_types
    if known_types and (
        exchange.content_encoding or media_type(exchange.content_type) not in known_types
    ):
        _check_content(exchange, matched)


def _check_content(exchange: Exchange, matched: Matched) -> None:
    """Check the content type. UnsupportedMediaTypeError."""
    given = media_type(exchange.content_type)
    if not exchange.has_body and (not given or matched.route.is_body_optional):
        return  # the handler says what is missing
    if not given and matched.takes_untyped:
        given = JSON_CONTENT_TYPE
    if given not in matched.body_types:
        known = ", ".join(matched.body_types)
        shown = shortened(exchange.content_type.decode("latin-1"))
        wrong = f"content-type {shown} is not taken" if given else "the body has no content-type"
        wanted = f"one of: {known}" if len(matched.body_types) > 1 else f"content-type: {known}"
        raise UnsupportedMediaTypeError(f"{wrong}; send {wanted}", contentType=shown)
    coding = exchange.content_encoding
    if coding and coding.lower() != _IDENTITY:
        shown = shortened(coding.decode("latin-1"))
        raise UnsupportedMediaTypeError(
            f"content-encoding {shown} is not taken; send the body uncompressed: the broker "
            "compresses batches itself",
            contentEncoding=shown,
        )


def check_secret(secret: str, authorization: bytes) -> None:
    """SecretRequiredError unless the header names the ring's secret; an empty one needs none."""
    scheme, _, given = authorization.partition(b" ")
    is_named = compare_digest(given.strip(), secret.encode())  # in a time that reveals nothing
    if secret and not (is_named and scheme.lower() == b"bearer"):
        what = "another secret than the ring's" if authorization else "no secret"
        raise SecretRequiredError(
            f"the request names {what}; send Authorization: Bearer with the ring's secret, which "
            "the command line takes from TAILRACE_TOKEN"
        )


@lru_cache(maxsize=256)
def media_type(value: bytes) -> str:
    """A Content-Type without its parameters; empty when there is none."""
    return value.partition(b";")[0].strip().lower().decode("latin-1")


@lru_cache(maxsize=256)
def media_type_list(value: bytes) -> str:
    """An Accept header in lower case."""
    return value.lower().decode("latin-1")


def _read_host(exchange: Exchange, value: bytes) -> None:
    exchange.hosts += 1
    exchange.host = value


def _read_listed(field: str, exchange: Exchange, value: bytes) -> None:
    """Several become a list, which is none of the values that one of them can have."""
    before = getattr(exchange, field)
    setattr(exchange, field, before + b", " + value if before else value.strip())


def _read_content_length(exchange: Exchange, value: bytes) -> None:
    """Digits alone, and one of it, the parser has checked; but thousands of zeros pass it."""
    digits = value.strip()
    exchange.content_bytes = int(digits) if len(digits) <= DIGITS_MAX else -1


def _read_transfer_encoding(exchange: Exchange, value: bytes) -> None:
    """Two of them become a list, which is refused."""
    before = exchange.transfer_coding
    exchange.transfer_coding = before + b", " + value if before else value.strip() or b"none"


def _read_content_type(exchange: Exchange, value: bytes) -> None:
    exchange.content_type = value


def _read_accept(exchange: Exchange, value: bytes) -> None:
    exchange.accept = exchange.accept + b", " + value if exchange.accept else value


def _read_expect(exchange: Exchange, value: bytes) -> None:
    exchange.expectation = value.strip() or b"nothing"


def _read_own(name: bytes, exchange: Exchange, value: bytes) -> None:
    """Two of one name become a list, which is none of the values that it can have."""
    before = exchange.own_headers.get(name)
    whole = value.strip() if before is None else before + b", " + value
    exchange.own_headers = {**exchange.own_headers, name: whole}


# What reads a header that says something here; InvalidRequestError is left to `check_head`.
HEADERS: dict[bytes, Callable[[Exchange, bytes], None]] = {
    b"host": _read_host,
    b"origin": partial(_read_listed, "origin"),
    b"sec-fetch-site": partial(_read_listed, "fetch_site"),
    b"content-length": _read_content_length,
    b"transfer-encoding": _read_transfer_encoding,
    b"content-type": _read_content_type,
    b"content-encoding": partial(_read_listed, "content_encoding"),
    b"accept": _read_accept,
    b"expect": _read_expect,
    b"authorization": partial(_read_listed, "authorization"),
    **{name: partial(_read_own, name) for name in _OWN_HEADERS},
}
