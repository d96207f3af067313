"""Removes the files of partitions that the ring's state names no more: they have no record."""

import shutil

import structlog

from tailrace.wire import DAMAGED_SUFFIX
from tailrace_broker.model.errors import StoredDataError
from tailrace_broker.model.topic import Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors

_log = structlog.get_logger()


def remove_gone(directory: DataDirectory, topic: Topic) -> None:
    """Blocks. No log of them is open. What cannot be removed the next start removes."""
    ids = {each.partition for each in topic.partitions}
    last = max(ids, default=-1)
    if len(ids) == last + 1:  # none is gone
        return
    parent = directory.partition_path(topic.topic_id, last).parent
    try:
        with translated_errors(parent):
            found = sorted(parent.iterdir()) if parent.is_dir() else []
            for path in found:  # a log, and beside it what of it was set aside as damaged
                number = path.name.removesuffix(DAMAGED_SUFFIX)
                if not number.isdecimal() or int(number) >= last or int(number) in ids:
                    continue
                directory.inventory.cut_segments(topic.topic_id, int(number), None)
                shutil.rmtree(path)
                _log.info("partition.removed", topic=topic.name, partition=int(number))
            if parent.is_dir():
                sync_directory(parent)
    except StoredDataError as error:
        _log.warning("partition.kept", topic=topic.name, detail=error.detail)
