"""The doors that are not hot: public (9250), read (9252), metrics (9253); aiohttp applications.

They share their verbs with the fast produce door: `net.produce`, `net.read`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from tailrace.wire import JSON_CONTENT_TYPE
from tailrace_broker.model.errors import (
    InvalidBodyError,
    InvalidParameterError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotReadyError,
    PathNotFoundError,
    TailraceError,
)
from tailrace_broker.model.topic import PARTITIONS_PER_RANGE_DEFAULT, Topic, TopicSettings
from tailrace_broker.net import read as reading
from tailrace_broker.net.api import Broker
from tailrace_broker.net.problems import (
    PROBLEM_CONTENT_TYPE,
    problem_body,
    problem_headers,
    problem_status,
)
from tailrace_broker.net.produce import (
    HEADER_BYTES_MAX,
    ProduceTarget,
    check_body_size,
    header_too_large,
    parse_target,
    produce,
    request_timeout,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# A read's answer is sent whole up to here, else in pieces of this size.
SEND_BYTES = 1024 * 1024
PARTITION_MAX = 2**31 - 1

# How msgspec names the field that does not fit.
_FIELD = re.compile(r"(?:field `|at `\$\.)([^`]+)`")

_READ_PARAMETERS = frozenset({"offset", "maxRecords", "maxBytes"})


class _NewTopic(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: str
    partitions_per_range: int = PARTITIONS_PER_RANGE_DEFAULT
    json_check: bool = True


class DoorConnection(web.RequestHandler):
    """aiohttp's connection; answers bytes that are not HTTP as the fast door does."""

    __slots__ = ()

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp: no log of requests
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            auto_decompress=False,  # a body is stored as it was sent
        )

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the parser refused, then close; log what is not the peer's fault."""
        if isinstance(exc, ConnectionError):
            raise exc  # the peer has gone in the middle of its request: there is nobody to answer
        if isinstance(exc, LineTooLong):
            error: TailraceError = header_too_large()
        elif isinstance(exc, HttpProcessingError):
            error = _invalid_request(exc)
        else:
            return super().handle_error(request, status, exc, message)
        response = problem_response(error)
        response.force_close()
        return response


class PublicDoor:
    """The handlers of the public paths."""

    def __init__(self, broker: Broker, on_bug: Callable[[BaseException], None]) -> None:
        """`on_bug` gets what no handler expected: the runtime ends the process."""
        self._broker = broker
        self._on_bug = on_bug

    def read_app(self) -> web.Application:
        """The read door: records and offsets."""
        app = self._app()
        app.add_routes(
            [
                web.get("/v1/topic/{topic}/partitions/{partition}/records", self._read),
                web.get("/v1/offsets", self._offsets),
            ]
        )
        return app

    def public_app(self) -> web.Application:
        """The one door that has every public path."""
        app = self.read_app()
        app.add_routes(
            [
                web.get("/v1/topics", self._list_topics),
                web.post("/v1/topics", self._create_topic),
                web.post("/v1/topic/{topic}/messages", self._produce),
                web.get("/live", self._live),
                web.get("/ready", self._ready),
            ]
        )
        return app

    def metrics_app(self, render: Callable[[], bytes]) -> web.Application:
        """The metrics door; `render` makes Prometheus' text format."""

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(
                body=render(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
            )

        app = self._app()
        app.add_routes([web.get("/metrics", metrics)])
        return app

    def _app(self) -> web.Application:
        return web.Application(middlewares=[self._answer_problems])

    @web.middleware
    async def _answer_problems(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer our errors, and aiohttp's own, as problem documents."""
        try:
            return await handler(request)
        except TailraceError as error:
            return problem_response(error)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return problem_response(MethodNotAllowedError(f"{request.path} takes {allowed}"))
        except web.HTTPNotFound:
            return problem_response(PathNotFoundError(f"no path {request.path} at this door"))
        except ConnectionError:
            raise  # the peer has gone
        except Exception as error:  # a supervisor: aiohttp would answer 500 and go on
            self._on_bug(error)
            raise

    async def _read(self, request: web.Request) -> web.StreamResponse:
        counters = self._broker.counters
        counters.read_requests += 1
        try:
            return await self._read_records(request)
        except TailraceError:
            counters.read_errors += 1
            raise

    async def _read_records(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        for name in query:
            if len(query.getall(name)) > 1:
                raise InvalidParameterError(f"{name} is given twice", parameter=name)
            if name not in _READ_PARAMETERS:
                raise InvalidParameterError(
                    f'no parameter "{name}"; a read takes offset, maxRecords and maxBytes',
                    parameter=name,
                )
        read_request = reading.ReadRequest(
            topic=request.match_info["topic"],
            partition=reading.whole_number(
                "partition", request.match_info["partition"], 0, PARTITION_MAX
            ),
            offset=query.get("offset", "earliest"),
            records_max=reading.whole_number(
                "maxRecords",
                query.get("maxRecords", str(reading.RECORDS_DEFAULT)),
                1,
                reading.RECORDS_MAX,
            ),
            bytes_max=reading.whole_number(
                "maxBytes",
                query.get("maxBytes", str(reading.READ_BYTES_DEFAULT)),
                1,
                reading.READ_BYTES_MAX,
            ),
            accept=request.headers.get("accept", ""),
        )
        return await self._send(request, await reading.read(self._broker, read_request))

    async def _send(self, request: web.Request, answer: reading.ReadAnswer) -> web.StreamResponse:
        """In one piece when it is small, else chunk by chunk as it is read."""
        headers = {
            "content-type": answer.content_type,
            "Tailrace-Next-Offset": str(answer.next_offset),
            "Tailrace-High-Watermark": str(answer.high_watermark),
            "Tailrace-Log-Start": str(answer.log_start),
        }
        waiting: list[bytes] = []
        waiting_bytes = 0
        stream: web.StreamResponse | None = None
        async for chunk in answer.chunks:
            self._broker.counters.read_bytes += len(chunk)
            waiting.append(chunk)
            waiting_bytes += len(chunk)
            if waiting_bytes > SEND_BYTES and len(waiting) > 1:
                if stream is None:
                    stream = web.StreamResponse(headers=headers)
                    await stream.prepare(request)
                await stream.write(b"".join(waiting))
                waiting, waiting_bytes = [], 0
        body = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        if stream is None:
            return web.Response(body=body, headers=headers)
        await stream.write_eof(body)
        return stream

    async def _offsets(self, request: web.Request) -> web.Response:
        for name in request.query:
            if name != "topic":
                raise InvalidParameterError(
                    f'no parameter "{name}"; offsets takes topic', parameter=name
                )
        names = request.query.getall("topic", [])
        hosted = [self._broker.hosted(name) for name in names] or list(self._broker.topics())
        return _json(reading.offsets(hosted))

    async def _list_topics(self, _: web.Request) -> web.Response:
        topics = [_topic_members(hosted.topic) for hosted in self._broker.topics()]
        return _json(msgspec.json.encode({"topics": topics}))

    async def _create_topic(self, request: web.Request) -> web.Response:
        async with self._body(request) as body:
            wanted = _parse_new_topic(body)
        settings = TopicSettings(wanted.partitions_per_range, wanted.json_check)
        topic, is_new = await self._broker.create_topic(wanted.name, settings)
        return _json(msgspec.json.encode(_topic_members(topic)), status=201 if is_new else 200)

    async def _produce(self, request: web.Request) -> web.Response:
        counters = self._broker.counters
        try:
            target = parse_target(request.raw_path.encode("utf-8", "surrogateescape"))
            content_type = request.headers.get("content-type", JSON_CONTENT_TYPE)
            async with self._body(request) as body:
                return await self._append(target, content_type, body)
        except TailraceError:
            counters.produce_errors += 1
            raise
        finally:
            counters.produce_requests += 1

    async def _append(self, target: ProduceTarget, content_type: str, body: bytes) -> web.Response:
        """`produce` as something to wait for."""
        answered: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()

        def answer(status: int, body: bytes, error: TailraceError | None) -> None:
            if answered.cancelled():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(_json(body, status=status))

        produce(self._broker, target, content_type, body, answer)
        return await answered

    @asynccontextmanager
    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        """The request's body; it counts as produce memory, from before it is received."""
        held_bytes = 0

        def hold(size_bytes: int) -> None:
            nonlocal held_bytes
            check_body_size(self._broker, held_bytes + size_bytes)
            self._broker.take_produce_memory(size_bytes)
            held_bytes += size_bytes

        body = bytearray()
        try:
            hold(request.content_length or 0)
            try:
                async with asyncio.timeout(self._broker.request_seconds):
                    async for chunk in request.content.iter_any():
                        body += chunk
                        if len(body) > held_bytes:  # chunked: the size was not known before
                            hold(len(body) - held_bytes)
            except TimeoutError as error:
                raise request_timeout(self._broker) from error
            except (web.RequestPayloadError, HttpProcessingError) as error:
                raise _invalid_request(error) from error
            yield bytes(body)
        finally:
            self._broker.return_produce_memory(held_bytes)

    async def _live(self, _: web.Request) -> web.Response:
        return _json(b'{"live":true}')

    async def _ready(self, _: web.Request) -> web.Response:
        if not self._broker.is_ready:
            raise NotReadyError("the broker is recovering its data, or stopping")
        return _json(b'{"ready":true}')


def problem_response(error: TailraceError) -> web.Response:
    """An error as an answer."""
    return web.Response(
        status=problem_status(error),
        body=problem_body(error),
        headers={"content-type": PROBLEM_CONTENT_TYPE, **problem_headers(error)},
    )


def _parse_new_topic(body: bytes) -> _NewTopic:
    """InvalidParameterError names a field; InvalidBodyError when it is not even JSON."""
    try:
        return msgspec.json.decode(body, type=_NewTopic)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = f"{error}; a topic has name, partitionsPerRange and jsonCheck"
        field = _FIELD.search(str(error)) if isinstance(error, msgspec.ValidationError) else None
        if field:
            raise InvalidParameterError(detail, parameter=field[1]) from error
        raise InvalidBodyError(detail) from error


def _invalid_request(error: Exception) -> InvalidRequestError:
    """aiohttp's message without the bytes that it quotes."""
    reason = str(getattr(error, "message", error)).partition(":\n")[0]
    return InvalidRequestError(f"not an HTTP/1.1 request: {reason}")


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, headers={"content-type": JSON_CONTENT_TYPE})


def _topic_members(topic: Topic) -> dict[str, str | int | bool]:
    return {
        "name": topic.name,
        "id": str(topic.topic_id),
        "partitionsPerRange": topic.settings.partitions_per_range,
        "jsonCheck": topic.settings.json_check,
        "durability": "fsync",
        "partitions": len(topic.partitions),
        "copies": 1,
    }
