"""Lines -> requests of a `RequestProducer`."""

import json
from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import NamedTuple
from zlib import crc32

from tailrace.cli.producing.form import BadLine, Form, read_event
from tailrace.errors import ProblemError, TopicNotFoundError
from tailrace.produced import Produced
from tailrace.protocol.murmur3 import token
from tailrace.request_producer import RequestProducer
from tailrace.sansio.routing import Routing
from tailrace.sync import Client


class Target(NamedTuple):
    """Where events go, and how."""

    topic: str
    form: Form

    @property
    def checksum(self) -> int:
        """What a token's checksum starts with; of one target the same in every version."""
        key, key_path, separator, headers, timestamp_us, is_lines = self.form
        options = [
            self.topic,
            None if key is None else key.hex(),
            key_path,
            separator.hex(),
            [(name.hex(), value.hex()) for name, value in headers],
            timestamp_us,
            is_lines,
        ]
        return crc32(json.dumps(options).encode())


class LineRequest(NamedTuple):
    """The lines up to the first bad one; `send` None: none of them is an event.

    `keys`: of each event, with the index of its line.
    """

    lines: Sequence[bytes]
    send: Callable[[], list[Produced]] | None
    bad_line: BadLine | None = None
    keys: Sequence[tuple[int, bytes | None]] = ()


class LineRequests:
    """Makes them of lines, for one topic."""

    def __init__(self, client: Client, producer: RequestProducer, target: Target) -> None:
        self.client = client
        self._producer = producer
        self._topic, self._form = target
        self._json_check: bool | None = None

    def of(self, lines: Sequence[bytes], stored: Collection[int]) -> LineRequest:
        """One request, not sent yet. `stored`: partitions that have what they should of it."""
        if not self._form.is_plain:
            return self._of_records(lines, stored)
        if not any(line.strip(b"\r\n") for line in lines):
            return LineRequest(lines, None)
        body = b"".join(lines)
        return LineRequest(lines, lambda: [self._producer.produce_lines(self._topic, body)])

    def partitions(self, client: Client, keys: Sequence[bytes | None]) -> list[int | None]:
        """Of records with these keys; what they are now, as a broker knows."""
        routing = Routing(client.url)
        routing.learn_topic(client.topic(self._topic), 0.0)
        keyless = self._producer.id.encode()
        tokens = (token(keyless if key is None else key) for key in keys)
        return [routing.partition_of(self._topic, each) for each in tokens]

    def _of_records(self, lines: Sequence[bytes], stored: Collection[int]) -> LineRequest:
        form = self._form
        records = form.records(lines, json_check=self._checks_json())
        keys, values, indices, bad_line = records
        good = lines if bad_line is None else lines[: bad_line.line_index]
        if stored:
            partitions = self.partitions(self.client, keys)
            missing = [partition not in stored for partition in partitions]
            keys, values = list(compress(keys, missing)), list(compress(values, missing))
            indices = list(compress(indices, missing))
        if not values:
            return LineRequest(good, None, bad_line)
        times = None if form.timestamp_us is None else [form.timestamp_us] * len(values)
        headers = [form.headers] * len(values) if form.headers else None
        return LineRequest(
            good,
            lambda: self._producer.produce_records(self._topic, keys, values, times, headers),
            bad_line,
            list(zip(indices, keys, strict=True)),
        )

    def _checks_json(self) -> bool:
        """Whether the topic does; the broker leaves that of records to who sends them.

        A topic that does not exist will, when the first request creates it.
        """
        if self._form.key_path:
            return True
        if self._json_check is None:
            try:
                self._json_check = self.client.topic(self._topic).topic.json_check
            except TopicNotFoundError:
                self._json_check = True
        return self._json_check


def refused_line(error: ProblemError, lines: Sequence[bytes]) -> BadLine | None:
    """The line that the broker refused, when it is one line's fault."""
    line = error.members.get("line")
    if error.type != "invalid-record" or not isinstance(line, int):
        return None
    try:
        read_event(lines[line - 1].rstrip(b"\r\n"))
    except ValueError as known:
        return BadLine(line - 1, str(known))
    return BadLine(line - 1, f"is not JSON ({error.detail.partition(';')[0]})")
