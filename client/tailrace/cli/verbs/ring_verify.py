"""`tailrace ring verify`: asks all brokers whether the ring is as it is to be."""

from typing import TYPE_CHECKING

from tailrace.cli.lib.options import OUTPUT, URL, connect
from tailrace.cli.lib.parser import UsageError, Verb
from tailrace.cli.lib.remedies import with_url
from tailrace.errors import ProblemError

if TYPE_CHECKING:
    from tailrace.cli.checking.check import Check
    from tailrace.sync import Client


def verify(*, output: str, url: str | None) -> None:
    """Check that nothing of the ring is missing; exit 1 when something is (✗), with the remedy.

    Each token has one owner; each range its leader, and all its replicas in sync; each sealed range
    its complete copies, three or as many as there are brokers; no step has been open for long; all
    brokers answer, and know nearly the same. It asks them all, and changes nothing.
    """
    from tailrace.cli.checking.check import FAILED, checks_text
    from tailrace.cli.lib.output import show

    with connect(url) as client:
        checks = ring_verify_checks(client)
    show(output, [check._asdict() for check in checks], with_url(checks_text(checks), url))
    if any(check.state == FAILED for check in checks):
        raise SystemExit(1)


def ring_verify_checks(client: "Client") -> "list[Check]":
    """Ask the voters, then each broker. UsageError: the broker is in no ring."""
    from tailrace.cli.checking.verify_checks import not_agreed_check, verify_checks
    from tailrace.cli.lib.ring_rows import ring_of_each

    first = []
    try:
        ring = client.ring(consistent=True)
    except ProblemError as error:
        if error.type != "not-agreed":
            raise
        first.append(not_agreed_check(error.detail))
        ring = client.ring()
    if ring.brokers is None:
        raise UsageError("this broker is in no ring yet. See: tailrace ring status")
    return first + verify_checks(ring, ring_of_each(client, range(ring.brokers)))


VERB = Verb(verify, (OUTPUT, URL), ("tailrace ring verify", "tailrace ring verify -o json"))
