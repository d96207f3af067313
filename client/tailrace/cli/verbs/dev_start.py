"""`tailrace dev start N`: one broker of a local ring, beside those that run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cli.lib.parser import Verb, parameter, whole_number
from tailrace.cli.verbs.dev import (
    BROKERS_MAX,
    DATA,
    DEFAULT_DATA,
    exit_on_signals,
    require_broker_extra,
)
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.local.broker import LocalBroker


def start(*, ordinal: int, data: Path) -> None:
    """Start one broker of a ring again, beside those that run, until Ctrl-C; data stays.

    Ports and secret are those of the ring's last `tailrace dev`, whose Ctrl-C does not end it.
    """
    from tailrace.local.broker import BrokerEndedError, PortTakenError, exported_settings
    from tailrace.local.member import member_of

    require_broker_extra()
    broker = member_of(data, ordinal, settings={"log_level": "warning"} | exported_settings())
    exit_on_signals()
    try:
        with broker:
            _wait_ready(broker, ordinal)
            print(
                f"✓ broker {ordinal} ready, data in {broker.data_dir}\n"
                f"  {broker.url}  pid {broker.pid}  log {broker.log_path}\n"
                "Ctrl-C ends it, data stays.",
                flush=True,
            )
            broker.wait()
    except BrokerEndedError as error:
        if error.exit_code > 0:  # it has said why
            raise
        option = "" if data == DEFAULT_DATA else f" --data {data}"
        raise TailraceError(
            f"broker {ordinal} {error.how}; its data is in {broker.data_dir}, and the ring is "
            f"without it until it runs again: tailrace dev start {ordinal}{option}"
        ) from error
    except PortTakenError as error:
        raise TailraceError(
            f"{error}; end what listens there: the ring expects broker {ordinal} at {broker.url}"
        ) from error


def _wait_ready(broker: "LocalBroker", ordinal: int) -> None:
    """Say once what it waits for: most of the voters must live."""
    from tailrace.local.broker import BrokerEndedError
    from tailrace.local.ring import SLOW_S, waiting_note

    try:
        broker.wait_ready(SLOW_S)
    except BrokerEndedError:
        raise
    except TailraceError:
        print(waiting_note(broker, ordinal, "to be ready"), file=sys.stderr, flush=True)
        broker.wait_ready()


VERB = Verb(
    start,
    (
        parameter(
            "ordinal",
            metavar="N",
            type=whole_number(0, BROKERS_MAX - 1),
            help="the broker's number, from 0 on",
        ),
        DATA,
    ),
    ("tailrace dev start 1", "tailrace dev start 2 --data /tmp/ring"),
)
