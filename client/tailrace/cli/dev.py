"""`tailrace dev`: a broker on this machine for as long as the command runs, and not longer."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Never

from tailrace.cli.parser import Verb, parameter, whole_number
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from types import FrameType

    from tailrace.local_broker import LocalBroker

DEFAULT_PORT = 9250
PORT_STRIDE = 10  # brokers of a local ring are that far apart (docs/protocol.md)
DOORS = (
    ("public", "", "every path: topics, produce, read, offsets, health"),
    ("produce", "", "the fast door for events"),
    ("read", "", "records and offsets"),
    ("metrics", "/metrics", "for Prometheus"),
)
# The `broker` extra's packages that no other extra brings: one missing means that it is missing.
BROKER_PACKAGES = ("httptools", "mmh3", "msgspec", "pydantic_settings", "structlog")
DEMO_KEY = "SFO"
DEMO_PARTITION = 2  # where a broker puts DEMO_KEY in a topic of its default four partitions


def dev(*, data: Path, port: int) -> None:
    """Run a broker on this machine until Ctrl-C; its data stays."""
    from tailrace.local_broker import LocalBroker, PortTakenError, exported_settings

    _require_broker_extra()
    _exit_on_signals()
    settings = {"log_level": "warning"} | exported_settings()
    try:
        with LocalBroker(data / "0", port=port, settings=settings) as broker:
            _wait_ready(broker)
            print(_welcome(broker), flush=True)
            broker.wait()
    except PortTakenError as error:
        raise TailraceError(
            f"{error}. Choose others: tailrace dev --port {port + PORT_STRIDE}"
        ) from error


def _require_broker_extra() -> None:
    from importlib.util import find_spec

    if not all(map(find_spec, BROKER_PACKAGES)):
        raise TailraceError(
            "the broker is not installed. Install it: pip install 'tailrace[broker]'"
        )


def _exit_on_signals() -> None:
    """Let these unwind the stack as Ctrl-C does, so that the broker is stopped."""
    import signal

    def leave(_number: int, _frame: "FrameType | None") -> Never:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def _wait_ready(broker: "LocalBroker") -> None:
    """A broker that ends before it serves has told why on stderr: nothing is added."""
    from tailrace.local_broker import BrokerEndedError

    try:
        broker.wait_ready()
    except BrokerEndedError as error:
        raise SystemExit(error.exit_code or 1) from error


def _welcome(broker: "LocalBroker") -> str:
    """The doors, and two lines to paste."""
    from tailrace.local_broker import HOST

    doors = [
        f"  {name:8} http://{HOST}:{broker.port + index}{path:9} {purpose}"
        for index, (name, path, purpose) in enumerate(DOORS)
    ]
    url = f"{broker.url}/v1/topic/demo"
    return "\n".join(
        [
            f"✓ broker 0 ready, data in {broker.data_dir}",
            *doors,
            "Produce, then read:",
            f"""  curl -d '{{"origin":"{DEMO_KEY}"}}' -H 'content-type: application/json' """
            f"'{url}/messages?partitionKey={DEMO_KEY}'",
            f"  curl '{url}/partitions/{DEMO_PARTITION}/records?offset=earliest'",
            "Ctrl-C ends it, data stays.",
        ]
    )


def _directory(word: str) -> Path:
    if not word:
        raise argparse.ArgumentTypeError("a directory's name is needed, and not an empty one")
    return Path(word)


VERB = Verb(
    dev,
    (
        parameter(
            "--data",
            metavar="DIR",
            type=_directory,
            default=Path(".tailrace"),
            help="where data stays between runs; default .tailrace",
            complete="file",
        ),
        parameter(
            "--port",
            metavar="PORT",
            type=whole_number(1, 65535 - len(DOORS) + 1),
            default=DEFAULT_PORT,
            help=f"the first of four ports; default {DEFAULT_PORT}",
        ),
    ),
    ("tailrace dev", "tailrace dev --data /tmp/events --port 19250"),
)
