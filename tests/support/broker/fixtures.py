"""One constructor per real component that tests need: a broker process on loopback."""

import random
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.errors import TailraceError
from tailrace.local.broker import (
    HOST,
    LISTENER_COUNT,
    LocalBroker,
    PortTakenError,
    check_ports_are_free,
)

# Below Linux's ephemeral ports, so that no outgoing connection takes a port between choice and use.
PORT_BASES = range(20_000, 32_000, 10)
# How many bases a test process keeps others from choosing: those that it chose last.
CLAIMS_MAX = 120
READY_S_MAX = 60.0  # on a busy machine

_claims: deque[socket.socket] = deque()


class RunningBroker(LocalBroker):
    """A broker process that tests also restart; `log_path` has what it wrote."""

    log_path: Path

    def restart(self) -> None:
        """Start again on the same data and ports, after a clean stop if it still runs."""
        if self.is_running():
            self.stop()
        self.start()
        self.wait_ready()

    def wait_ready(self, timeout_s: float = READY_S_MAX) -> None:
        """Until the broker serves; AssertionError with its log when it ends or takes too long."""
        try:
            super().wait_ready(timeout_s)
        except TailraceError as error:
            raise AssertionError(f"{error}\n{self.log_path.read_text()}") from error


@contextmanager
def start_broker(tmp_path: Path, **settings: str | float) -> Iterator[RunningBroker]:
    """A ready broker with its data below `tmp_path`; it is gone when the block ends.

    Settings by their lower-case name, as in `auto_create_topics=False`.
    """
    broker = RunningBroker(
        tmp_path / "broker",
        port=free_port_base(),
        settings=settings,
        log_path=tmp_path / "broker.log",
    )
    broker.start()
    try:
        broker.wait_ready()
        yield broker
    finally:
        broker.kill()


def free_port_base() -> int:
    """A port that is free with the next three; not from the seeded generator that tests share."""
    for base in random.SystemRandom().sample(PORT_BASES, len(PORT_BASES)):
        if _is_mine(base):
            return base
    raise AssertionError(f"no {LISTENER_COUNT} free ports in a row in {PORT_BASES}")


@contextmanager
def refusing_url() -> Iterator[str]:
    """The URL of a port that refuses connections: it is bound, so nobody else can listen there."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield f"http://{HOST}:{bound.getsockname()[1]}"


def free_ring_port(broker_count: int) -> int:
    """A base port for a ring on loopback, whose brokers are ten ports apart."""
    starts = PORT_BASES[:-broker_count]
    for base in random.SystemRandom().sample(starts, len(starts)):
        if all(_is_mine(base + PORT_BASES.step * ordinal) for ordinal in range(broker_count)):
            return base
    raise AssertionError(f"no ports for {broker_count} brokers in {PORT_BASES}")


def _is_mine(base: int) -> bool:
    """Nothing listens there, and no test process beside this one has chosen it.

    A broker that was killed and starts again finds its ports, and between choice and use nobody
    takes them: a name in Linux's abstract namespace (unix(7)) is taken at once or not at all.
    """
    try:
        check_ports_are_free(base, has_peers=True)
    except PortTakenError:
        return False
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0tailrace-tests-{base}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    if len(_claims) > CLAIMS_MAX:
        _claims.popleft().close()
    return True
