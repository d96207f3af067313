"""Who keeps a group's offsets: the broker, for consumers, or a reader such as Spark, for itself.

A reader publishes how far it is, and nothing that the broker stores moves it. So its groups take no
consumers and no reset, and a reader does not write over what consumers have confirmed.
"""

from tailrace_broker.model.errors import GroupKindError

# Names of Spark's queries (docs/spark.md, "Lag"), whether they have published already or not.
SPARK_PREFIX = "spark:"
_SPARK = "spark"
_SPARK_REMEDY = (
    "its offsets are in Spark's checkpoint. To have the query read from elsewhere, start it with "
    "a new checkpointLocation and startingOffsets; consumers need a group of another name"
)


def reader_of(name: str, source: str | None) -> str | None:
    """Return the reader that keeps the group's offsets itself; None: it is a group of consumers.

    `source`: of what is published.
    """
    return source or (_SPARK if name.startswith(SPARK_PREFIX) else None)


def check_consumer_group(name: str, source: str | None) -> None:
    """GroupKindError for a group whose reader keeps its offsets itself."""
    reader = reader_of(name, source)
    if reader is not None:
        remedy = f'its offsets are kept by its reader, "{reader}"'
        if reader == _SPARK:
            remedy = _SPARK_REMEDY
        raise GroupKindError(f'"{name}": {remedy}', group=name, source=reader)


def check_reader_group(name: str, source: str | None, *, has_positions: bool) -> None:
    """GroupKindError for a group that consumers have read by."""
    if has_positions and reader_of(name, source) is None:
        raise GroupKindError(
            f'"{name}" has the offsets of its consumers, which would be lost: choose another '
            "groupId, or delete the group",
            group=name,
        )
