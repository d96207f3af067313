"""The main job's consumer group: two consumers share the topic, one is killed and replaced.

A consumer is a process (`examples.up_consumer`). The one that is killed has handled records that it
did not confirm: they must come again, to others. Nothing else may be missing or out of order.
"""

import json
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from examples.up_events import Events, OrderCheck, UpError
from tailrace.errors import GroupNotFoundError, GroupNotIdleError
from tailrace.sync import Client

GROUP = "demo"
HOLD_DELIVERY = 2  # so that what came before is confirmed
IDLE_SECONDS_MAX = 5.0  # of what an earlier run has left: more than a session of its consumers
SILENCE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.01


class Polled(NamedTuple):
    """What consumers got; `killed_count` is 0 when there were too few events to stop in between."""

    event_count: int
    twice_count: int
    killed_count: int


class DeliveryCheck:
    """Compares what consumers have handled, in that order, with what was sent.

    A partition's records come in order and without a gap. Some may come again, with all that
    follow them.
    """

    def __init__(self, events: Events, starts: Mapping[int, int], *, repeat_count: int) -> None:
        self._order = OrderCheck(events, repeat_count=repeat_count)
        self._starts = starts
        self._next = dict(starts)
        self._checksums = {partition: array("I") for partition in starts}
        self.twice_count = 0

    def feed(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take the next record; UpError when it is not one that may come now."""
        start, expected = self._starts[partition], self._next[partition]
        if not start <= offset <= expected:
            raise UpError(f"partition {partition}: offset {offset} came where {expected} was due")
        self._next[partition] = offset + 1
        checksums = self._checksums[partition]
        checksum = zlib.crc32(value or b"", zlib.crc32(key or b""))
        if offset - start == len(checksums):
            checksums.append(checksum)
            self._order.feed(partition, [(key, value)])
        elif checksums[offset - start] == checksum:
            self.twice_count += 1
        else:
            raise UpError(f"partition {partition}: offset {offset} came again as another record")

    def expect_again(self, starts: Mapping[int, int]) -> None:
        """Records from these offsets on were handled, but not confirmed: they must come again."""
        self._next |= starts

    def has_all(self, ends: Mapping[int, int]) -> bool:
        """Whether all below these offsets has come."""
        return all(self._next[partition] == end for partition, end in ends.items())

    def finish(self) -> int:
        """How many events came; UpError when one is missing."""
        return self._order.finish()


class Handled:
    """The file that consumers append to: what they have handled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("x+b")
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def new_lines(self) -> list[Any]:
        """What was appended since the last call; a line that is not whole yet waits."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [json.loads(line) for line in lines]


class ConsumerProcess:
    """A consumer, registered and waiting for `begin`; killed when the block ends."""

    def __init__(self, url: str, topic: str, handled: Path, log: BinaryIO, *options: str) -> None:
        command = [sys.executable, "-m", "examples.up_consumer", "--url", url, "--topic", topic]
        command += ["--group", GROUP, "--handled", str(handled), *options]
        # Ctrl-C is for the main job, which ends its consumers.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,
        )
        self._log_path = log.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()

    def wait_ready(self) -> None:
        """Until it is registered."""
        assert self._process.stdout
        if not self._process.stdout.readline():
            raise self._failure()

    def begin(self) -> None:
        """Let it poll."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL; it is gone on return."""
        self._process.kill()
        self._process.wait()

    def check_runs(self) -> None:
        """UpError when it has ended."""
        if self._process.poll() is not None:
            raise self._failure()

    def end(self) -> None:
        """Let it confirm what it has handled, and say goodbye."""
        self._process.communicate()
        if self._process.returncode:
            raise self._failure()

    def _failure(self) -> UpError:
        return UpError(f"a consumer has exited; what it said is in {self._log_path}")


def poll_by_group(
    client: Client,
    events: Events,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    repeat_count: int,
    log_path: Path,
) -> Polled:
    """Have consumers handle [starts, ends) of all partitions; UpError when that is not so.

    What consumers log goes to `log_path`.
    """
    begin_group_at(client, events.topic, starts)
    check = DeliveryCheck(events, starts, repeat_count=repeat_count)
    with ExitStack() as stack:
        log = stack.enter_context(log_path.open("wb"))
        name = stack.enter_context(TemporaryDirectory(dir=log_path.parent, prefix="consumers-"))
        handled = stack.enter_context(Handled(Path(name) / "handled.ndjson"))

        def start(*options: str) -> ConsumerProcess:
            each = ConsumerProcess(client.url, events.topic, handled.path, log, *options)
            return stack.enter_context(each)

        steady, killed = start(), start("--hold-delivery", str(HOLD_DELIVERY))
        live = [steady, killed]
        killed_count = 0
        begin_together(live)
        for line in follow(handled, lambda: check.has_all(ends) and not lag(client), live):
            if isinstance(line, list):
                check.feed(line[0], line[1], _bytes(line[2]), _bytes(line[3]))
                continue
            killed.kill()
            killed_count = 1
            check.expect_again({int(partition): at for partition, at in line["holds"].items()})
            live[1] = start()
            begin_together(live[1:])
        for each in live:
            each.end()
    return Polled(check.finish(), check.twice_count, killed_count)


def begin_group_at(client: Client, topic: str, offsets: Mapping[int, int]) -> None:
    """So that events of earlier runs do not come; UpError when somebody else reads as this group.

    Consumers of a run that was killed stay for their session.
    """
    deadline_s = time.monotonic() + IDLE_SECONDS_MAX
    while True:
        try:
            client.reset_group(GROUP, offsets={topic: offsets})
            return
        except GroupNotFoundError:  # the first consumer of a group creates it
            client.register("first", GROUP, [topic])
            client.goodbye("first")
        except GroupNotIdleError as error:
            if time.monotonic() > deadline_s:
                raise UpError(f"{error}; or make up FRESH=1 starts from no data") from error
            time.sleep(0.1)


def begin_together(consumers: list[ConsumerProcess]) -> None:
    """All registered first: they share the partitions from the beginning."""
    for consumer in consumers:
        consumer.wait_ready()
    for consumer in consumers:
        consumer.begin()


def lag(client: Client) -> int | None:
    """Events that the group has not confirmed."""
    return client.group(GROUP).info.lag


def follow(
    handled: Handled, is_done: Callable[[], bool], live: list[ConsumerProcess]
) -> Iterator[Any]:
    """What is handled, line by line, until all is done; UpError when nothing comes before."""
    heard_s = time.monotonic()
    while True:
        lines = handled.new_lines()
        yield from lines
        if lines:
            heard_s = time.monotonic()
        elif is_done():
            return
        elif time.monotonic() > heard_s + SILENCE_SECONDS_MAX:
            raise UpError(f'group "{GROUP}" got nothing for {SILENCE_SECONDS_MAX:.0f} s')
        else:
            for each in live:
                each.check_runs()
            time.sleep(POLL_SECONDS)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(errors="surrogateescape")
