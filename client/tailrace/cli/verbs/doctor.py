"""`tailrace doctor`: checks the broker and this machine, and says what to do."""

from tailrace.cli.lib.options import OUTPUT, URL, connect
from tailrace.cli.lib.parser import Verb
from tailrace.cli.lib.remedies import with_url


def doctor(*, output: str, url: str | None) -> None:
    """Check the broker and this machine; exit 1 when something is wrong (✗).

    A ! works, but not as well as it could.
    """
    from tailrace.cli.checking.check import FAILED, checks_text
    from tailrace.cli.checking.checks import broker_checks, machine_checks
    from tailrace.cli.lib.output import show

    with connect(url) as client:
        checks = [*broker_checks(client), *machine_checks()]
    show(output, [check._asdict() for check in checks], with_url(checks_text(checks), url))
    if any(check.state == FAILED for check in checks):
        raise SystemExit(1)


VERB = Verb(doctor, (OUTPUT, URL), ("tailrace doctor", "tailrace doctor -o json"))
