"""`tailrace topic restore`, and what `tailrace topic list --deleted` shows."""

from tailrace.cli.lib.options import (
    DRY_RUN,
    OUTPUT,
    URL,
    connect,
    counted,
    partitions_text,
    size_text,
    with_sealed,
)
from tailrace.cli.lib.parser import Verb, parameter, text


def list_deleted(*, output: str, url: str | None) -> None:
    """Topics whose data is still in the trash, the latest deletion first."""
    from tailrace.cli.lib.output import Column, as_table, member, show
    from tailrace.values import to_document

    columns = [
        member("TOPIC", "name"),
        member("ID", "id"),
        Column("PARTITIONS", partitions_text),
        Column("SIZE", lambda topic: size_text(topic["sizeBytes"])),
        member("DELETED", "deletedAt"),
        member("KEPT UNTIL", "purgeAt"),
    ]
    with connect(url) as client:
        documents = [to_document(topic) for topic in client.deleted_topics()]
    show(output, documents, as_table(documents, columns))


def restore(
    *, topic: str, new_name: str | None, dry_run: bool, output: str, url: str | None
) -> None:
    """Bring a deleted topic back, with all its records.

    What can be restored: tailrace topic list --deleted
    """
    from tailrace.cli.lib.output import show
    from tailrace.values import to_document

    with connect(url) as client:
        if dry_run:
            from tailrace.cli.lib.topic_plans import plan_restore

            show(output, *plan_restore(client, topic, new_name))
            return
        restored = client.restore_topic(topic, new_name=new_name)
    info = restored.topic
    opened = counted(info.open_partitions, "partition")
    line = f"✓ {info.name}: restored, {with_sealed(opened, info.sealed_partitions)}"
    show(output, to_document(info), line)


RESTORE = Verb(
    restore,
    (
        parameter(
            "topic",
            metavar="TOPIC",
            type=text,
            help="its id; or its name, when no other deleted topic had it",
        ),
        parameter(
            "--as",
            dest="new_name",
            metavar="NAME",
            type=text,
            help="another name, as when the old one is in use again",
        ),
        DRY_RUN,
        OUTPUT,
        URL,
    ),
    (
        "tailrace topic restore invoices",
        "tailrace topic restore invoices --as invoices-2025",
    ),
)
