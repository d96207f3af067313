"""Peers that ask for much and take little of it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread
from time import monotonic

from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import READ, Connection

MEBIBYTE = 1024 * 1024
RECEIVE_BUFFER_BYTES = 64 * 1024
# Three times what a peer has to take of its answer when it has a second for a MiB.
TRICKLE_BYTES_A_S = 3 * MEBIBYTE
TRICKLE_BYTES = 64 * 1024
TRICKLE_PAUSE_S = 0.02


def stalled_readers(
    broker: RunningBroker, opened: ExitStack, asked: bytes, *, count: int
) -> list[Connection]:
    """So many that have asked, and take nothing."""
    readers = [
        opened.enter_context(
            Connection(broker.port + READ, receive_buffer_bytes=RECEIVE_BUFFER_BYTES)
        )
        for _ in range(count)
    ]
    for reader in readers:
        reader.send(asked)
    return readers


@contextmanager
def trickling_readers(broker: RunningBroker, asked: bytes, *, count: int) -> Iterator[None]:
    """While the block lasts, so many that take their answers as slowly as they may."""
    ended = Event()
    with ExitStack() as opened:
        readers = stalled_readers(broker, opened, asked, count=count)

        for reader in readers:
            reader.socket.setblocking(False)

        def take() -> None:
            """What is due by now, since on a busy machine a pause may be a long one."""
            began_s, taken_bytes = monotonic(), [0] * count
            while not ended.wait(TRICKLE_PAUSE_S):
                due_bytes = (monotonic() - began_s) * TRICKLE_BYTES_A_S
                for index, reader in enumerate(readers):
                    with suppress(BlockingIOError):
                        while taken_bytes[index] < due_bytes:
                            piece = reader.socket.recv(TRICKLE_BYTES)
                            assert piece, "a reader that takes enough was cut off"
                            taken_bytes[index] += len(piece)

        taking = Thread(target=take)
        taking.start()
        try:
            yield
        finally:
            ended.set()
            taking.join()
