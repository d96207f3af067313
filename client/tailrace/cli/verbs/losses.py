"""`tailrace topic accept-loss`: go on without what a disk has lost of a partition."""

from tailrace.cli.lib.options import DRY_RUN, OUTPUT, TOPIC, URL, connect
from tailrace.cli.lib.parser import Verb, parameter, whole_number

PARTITION_MAX = 2**31 - 1


def accept_loss(*, topic: str, partition: int, dry_run: bool, output: str, url: str | None) -> None:
    """Let a partition that has lost its last records take events again, without them.

    Before it, try to restore its files: the log line partition.damaged names them. The partition
    goes on at an offset that no lost record can have had. It needs the ring's secret, when it has
    one: TAILRACE_TOKEN.
    """
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    with connect(url) as client:
        lost = client.accept_partition_loss(topic, partition, dry_run=dry_run)
    is_exact = lost.next_offset == lost.last_offset + 1
    last = f"to {lost.last_offset}" if is_exact else "and above"
    offsets = f"offsets {lost.first_offset} {last} of partition {partition}"
    if dry_run:
        text = f"would give up {offsets}, and go on at {lost.next_offset}"
    else:
        text = f"✓ {topic}: gave up {offsets}; it goes on at {lost.next_offset}"
    show(output, to_document(lost), text)


VERB = Verb(
    accept_loss,
    (
        TOPIC,
        parameter(
            "partition",
            metavar="PARTITION",
            type=whole_number(0, PARTITION_MAX),
            help="its number",
        ),
        DRY_RUN,
        OUTPUT,
        URL,
    ),
    (
        "tailrace topic accept-loss orders 3 --dry-run",
        "TAILRACE_TOKEN=$(cat .tailrace/ring-secret) tailrace topic accept-loss orders 3",
    ),
)
