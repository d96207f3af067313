"""What the kernel, uvloop and two cores alone take for a request: a server that does nothing.

It answers whatever arrives in one piece with the same bytes. Latencies and CPU times of a broker
are read beside its, from the same run and load: noise moves both.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import uvloop

HOST = "127.0.0.1"
BODY = b'{"topic":"bench","partition":3,"offset":170200,"count":1,"durability":"fsync","copies":1}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


@dataclass(frozen=True, slots=True)
class RunningEcho:
    """The process and the port that it listens on."""

    pid: int
    port: int


@contextmanager
def echo_server() -> Iterator[RunningEcho]:
    """A server process on a free port; it is gone when the block ends."""
    command = [sys.executable, "-m", "benchmarks.echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield RunningEcho(process.pid, port=int(process.stdout.readline()))
        finally:
            process.kill()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
