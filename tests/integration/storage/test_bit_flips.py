"""A bit of what a broker has stored flips: nothing wrong is served, nothing is silently missing."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace.sync import Client
from tailrace.wire import JOURNAL_FILE_HEADER, JOURNAL_FRAME_HEADER, BatchHeader
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.model.errors import CorruptPartitionError, TailraceError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.inspection import frames_in
from tailrace_broker.storage.inspection.brokers import check_files
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.broker.brokers import started_broker
from tests.support.broker.fixtures import start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.http.http11 import Connection, document, get
from tests.support.storage.damaged import flip, read_all, stored_batches
from tests.support.storage.storage import Appends
from tests.support.variables import whole_number

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SEED = 20_261
FLIPS = whole_number("FLIPS", 150, least=50, meaning="how many of each image, as in FLIPS=500")
LAST_FRAME_FLIPS = FLIPS // 10  # of these
SETTINGS: dict[str, Any] = {
    "segment_bytes": 1 << 20,
    "journal_bytes": 8 << 20,
    "scrub_bytes_per_second": 0,
}
# Value sizes by batch: large ones fill segments, of small ones the journal still has some.
BATCHES = {"large": [[2_000] * 50] * 26, "small": [[600]] * 500}
SUFFIXES = {".log", ".idx", ".journal"}
LINES = 500  # of each of 30 requests
# Nothing here is about the disk itself.
MEMORY = Path("/dev/shm")

# Topic, and the base offset of a batch.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Image:
    """A data directory, and what was acknowledged: a log's batches as they are served."""

    root: Path
    batches: dict[Place, StoredBatch]

    def last_of(self, topic: str) -> Place:
        """The last batch of a log."""
        return max(place for place in self.batches if place[0] == topic)


@dataclass(slots=True)
class Seen:
    """What a broker on a directory serves, and what it reports."""

    served: dict[Place, StoredBatch] = field(default_factory=dict)
    damaged: dict[str, list[range]] = field(default_factory=dict)
    refusal: str = ""
    has_cut: bool = False

    def reports(self, topic: str, header: BatchHeader) -> bool:
        """Whether it says that this batch cannot be read."""
        return bool(self.refusal) or any(
            header.base_offset in each and header.end_offset - 1 in each
            for each in self.damaged.get(topic, ())
        )


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Image]]:
    """Of a broker that was stopped, and of one that was killed with a journal in use."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        stopped, killed = Path(name) / "stopped", Path(name) / "killed"
        batches = asyncio.run(_produce(stopped, killed))
        yield {"stopped": Image(stopped, batches), "killed": Image(killed, batches)}


async def _produce(root: Path, killed: Path) -> dict[Place, StoredBatch]:
    """Fill a directory; `killed` becomes what it is while the broker runs."""
    noise = random.Random(SEED)
    seen = Seen()
    async with started_broker(root, **SETTINGS) as broker:
        for topic, batches in BATCHES.items():
            await broker.create_topic(topic, TopicSettings(partitions_per_range=1))
            log = broker.hosted(topic).log_of(0)
            for sizes in batches:
                await Appends(log).batch([noise.randbytes(size) for size in sizes])
            await _read(topic, log, seen)
        shutil.copytree(root, killed)
    assert len(seen.served) == sum(map(len, BATCHES.values()))
    return seen.served


def flips_of(image: Image) -> Iterator[tuple[Path, int, int]]:
    """File, byte and bit; each file as often as any other, up to its last byte that is not 0."""
    generator = random.Random(SEED)
    yield from _flips_of_last_frame(image, generator)
    files = [path for path in sorted(image.root.rglob("*")) if path.suffix in SUFFIXES]
    used_bytes = {path: len(path.read_bytes().rstrip(b"\0")) for path in files}
    for _ in range(FLIPS - LAST_FRAME_FLIPS):
        path = generator.choice(files)
        place = path.relative_to(image.root)
        yield place, generator.randrange(used_bytes[path]), generator.randrange(8)


def _flips_of_last_frame(image: Image, generator: random.Random) -> Iterator[tuple[Path, int, int]]:
    """In its header and in its batches alike: nothing that follows shows that it was there."""
    rounds = []
    for path in sorted(image.root.rglob("*.journal")):
        with path.open("rb") as file:
            *_, last = frames_in(file)
        rounds.append((last.sequence, path, last))
    _, path, frame = max(rounds)
    for count in range(LAST_FRAME_FLIPS):
        size_bytes = JOURNAL_FRAME_HEADER.size if count % 2 else frame.size_bytes
        position = frame.position + generator.randrange(size_bytes)
        yield path.relative_to(image.root), position, generator.randrange(8)


async def look(root: Path, seen: Seen) -> None:
    """Start a broker there and read all that it serves."""
    with capture_logs() as lines:
        try:
            async with started_broker(root, **SETTINGS) as broker:
                for hosted in broker.topics():
                    topic = hosted.topic.name
                    try:
                        log = hosted.log_of(0)
                    except CorruptPartitionError:
                        seen.damaged[topic] = [range(1 << 40)]
                    else:
                        await _read(topic, log, seen)
        except* TailraceError as refused:
            seen.refusal = str(refused.exceptions)
    seen.has_cut = any(line["event"] in ("log.cut", "journal.cut") for line in lines)


async def _read(topic: str, log: PartitionLog, seen: Seen) -> None:
    """All that a log serves, going on behind damage where it says."""
    offset = log.log_start
    while offset < log.high_watermark:
        try:
            batches = await log.read(offset, 1 << 20)
        except CorruptPartitionError as error:
            first, following = error.members["firstOffset"], error.members["nextOffset"]
            assert isinstance(first, int)
            assert isinstance(following, int)
            assert first <= offset < following
            seen.damaged.setdefault(topic, []).append(range(first, following))
            offset = following
        else:
            for batch in batches:
                assert batch.header.base_offset == offset
                stored = StoredBatch(batch.header, (b"".join(batch.buffers),))
                seen.served[topic, offset] = stored
                offset = batch.header.end_offset


def is_last_segment(image: Image, change: tuple[Path, int, int]) -> bool:
    """Whether the file is the segment at the end of its log."""
    path = image.root / change[0]
    return path.suffix == ".log" and path == max(path.parent.glob("*.log"))


def is_needed(image: Image, change: tuple[Path, int, int]) -> bool:
    """Whether the byte says something: in a journal only the present round does."""
    path, position, _ = change
    if path.suffix != ".journal":
        return True
    with (image.root / path).open("rb") as file:
        frames = list(frames_in(file))
    return position < JOURNAL_FILE_HEADER.size or any(
        frame.position <= position < frame.position + frame.size_bytes for frame in frames
    )


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_flipped_bit_is_never_served_and_what_it_takes_away_is_reported(
    images: dict[str, Image], name: str
) -> None:
    image = images[name]
    work = image.root.with_name("work")
    outcomes: Counter[str] = Counter()
    for change in flips_of(image):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(image.root, work)
        path, position, bit = change
        flip(work / path, position, bit)
        report = check_files(work)
        seen = Seen()
        asyncio.run(look(work, seen))

        assert all(image.batches[place] == batch for place, batch in seen.served.items()), change
        silent = [
            place
            for place, batch in image.batches.items()
            if place not in seen.served and not seen.reports(place[0], batch.header)
        ]
        if silent:
            # What cannot be distinguished from a write that was torn by the kill.
            assert name == "killed", change
            assert seen.has_cut, change
            assert silent == [image.last_of(silent[0][0])], change
        # The end of a log that the journal still holds is taken from there.
        is_repaired = is_last_segment(image, change) and len(seen.served) == len(image.batches)
        assert report.findings or is_repaired or not is_needed(image, change), change
        is_reported = bool(seen.refusal or seen.damaged)
        assert report.bad_count or not is_reported, change
        outcomes["reported" if is_reported else "cut" if silent else "served whole"] += 1
    print(f"{name}: {FLIPS} flips, {dict(outcomes)}")

    assert outcomes["reported"] > FLIPS / 5
    assert outcomes["served whole"] > FLIPS / 5


def test_a_running_broker_finds_damage_reports_it_and_serves_what_lies_behind(
    tmp_path: Path,
) -> None:
    with start_broker(tmp_path, segment_bytes=1 << 20, scrub_bytes_per_second=1 << 30) as broker:
        with Client(broker.url) as client:
            client.create_topic("t", partitions_per_range=1, json_check=False)
            for number in range(30):
                noise = random.Random(number)
                texts = [noise.randbytes(100).hex() for _ in range(LINES)]
                client.produce_lines("t", "\n".join(texts).encode())
        broker.stop()
        first, second, *_ = sorted((broker.data_dir / "data").rglob("*.log"))
        position, header = stored_batches(first)[2]
        hurt = range(header.base_offset, header.end_offset)
        hidden = range(int(second.stem), stored_batches(second)[1][1].base_offset)
        flip(first, position + 500, 0)
        flip(second, 3, 0)  # of the header of the first batch: an index entry ends what it hides
        broker.restart()
        wait_for_metric(broker, "tailrace_quarantined_batches", 2)
        lines = broker.log_path.read_text().splitlines()
        problems, offsets = read_all(broker.port, 30 * LINES, max_records=LINES)
        with Connection(broker.port) as connection:
            topic = document(connection.exchange(get("/v1/topics/t")))

    assert sum('"batch.quarantined"' in line for line in lines) == 2
    assert [
        (problem["type"], problem["topic"], problem["partition"]) for problem in problems
    ] == 2 * [("/v1/problems/corrupt-partition", "t", 0)]
    assert [
        (problem["firstOffset"], problem["lastOffset"], problem["nextOffset"])
        for problem in problems
    ] == [(each.start, each.stop - 1, each.stop) for each in (hurt, hidden)]
    assert offsets == [n for n in range(30 * LINES) if n not in hurt and n not in hidden]
    assert topic["partitionDetails"][0]["quarantined"] == [
        {
            "firstOffset": lost.start,
            "lastOffset": lost.stop - 1,
            "file": str(path),
            "byte": byte,
            "accepted": False,
        }
        for lost, path, byte in ((hurt, first, position), (hidden, second, 0))
    ]
