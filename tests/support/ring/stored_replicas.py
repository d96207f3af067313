"""What the disks of stopped brokers hold of a topic's partitions, batch by batch."""

from collections.abc import Mapping
from pathlib import Path

from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.storage.inspection import check_brokers
from tailrace_broker.storage.inspection.disk import InspectedDisk, InspectedLog
from tailrace_broker.storage.inspection.logs import NotedRepairs
from tailrace_broker.storage.inspection.pieces import pieces_in
from tailrace_broker.storage.log.recovery import recover_with
from tailrace_broker.storage.segments.writer import segment_path

_POOL_BYTES = 64 << 20


def bad_findings(data_dir: Path) -> list[str]:
    """Return what `tailrace verify` calls damaged below a broker's directory."""
    return [
        f"{finding.file} at {finding.position}: {finding.text}"
        for report in check_brokers(data_dir)
        for finding in report.findings
        if finding.is_bad
    ]


def stored_batches(data_dir: Path, topic: str) -> dict[int, list[bytes]]:
    """Return by partition the batches of the log that the next start would find, in order."""
    disk = InspectedDisk.read(data_dir / "data")
    return {
        log.place.partition: _batches_of(log) for log in disk.logs() if log.place.topic == topic
    }


def _batches_of(log: InspectedLog) -> list[bytes]:
    pool = BufferPool(_POOL_BYTES)
    recovered = recover_with(NotedRepairs(), log.place, log.evidence, pool, is_direct=False)
    assert not recovered.damages
    assert not recovered.losses
    batches: list[bytes] = []
    offset = recovered.start.log_start
    for state in recovered.segments:
        path = segment_path(log.place.directory, state.base_offset)
        if not path.exists():
            continue
        with path.open("rb") as file:
            for piece in pieces_in(file, path.stat().st_size):
                header = piece.header
                if header is None or header.base_offset != offset or offset >= state.end_offset:
                    continue
                file.seek(piece.position)
                batches.append(file.read(piece.size_bytes))
                offset = header.end_offset
    for pending in recovered.pending:
        assert pending.header.base_offset == offset, (pending.header, offset)
        batches.append(bytes(pending.stored))
        offset = pending.end_offset
    return batches


def assert_replicas_are_prefixes(disks: Mapping[int, Path], topic: str) -> None:
    """Assert that a shorter replica of a partition is how a longer one begins, byte by byte."""
    stored = {ordinal: stored_batches(path, topic) for ordinal, path in disks.items()}
    partitions = {frozenset(each) for each in stored.values()}
    assert len(partitions) == 1, partitions
    for partition in next(iter(partitions)):
        replicas = sorted((stored[ordinal][partition], ordinal) for ordinal in disks)
        replicas.sort(key=lambda each: len(each[0]))
        longest, owner = replicas[-1]
        for batches, ordinal in replicas[:-1]:
            for number, (one, other) in enumerate(zip(batches, longest, strict=False)):
                assert one == other, (
                    f"partition {partition}: batch {number} on broker {ordinal} is not that on "
                    f"broker {owner}: {one[:96].hex()} {other[:96].hex()}"
                )
