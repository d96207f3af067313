import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tailrace_broker.model.errors import ReadFailedError
from tailrace_broker.storage.segments.open_segments import OpenSegments


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{number}.log" for number in range(6)]
    for path in found:
        path.touch()
    return found


@pytest.fixture
def files() -> Iterator[OpenSegments]:
    files = OpenSegments(is_direct=False, count_max=2)
    yield files
    files.close()
    assert len(files) == 0


def descriptors(path: Path) -> int:
    """How many this process has of a file."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(link.readlink().name.split(" ")[0] == path.name for link in links)


def use(files: OpenSegments, path: Path) -> None:
    with files.use(path) as file:
        assert file.path == path


def test_the_file_that_was_unused_for_longest_is_closed(
    files: OpenSegments, paths: list[Path]
) -> None:
    for path in (paths[0], paths[1], paths[0], paths[2]):
        use(files, path)

    assert len(files) == 2
    assert [descriptors(path) for path in paths[:3]] == [1, 0, 1]


def test_all_users_of_a_file_share_a_descriptor(files: OpenSegments, paths: list[Path]) -> None:
    with files.use(paths[0]) as first, files.use(paths[0]) as second:
        assert first is second
        assert descriptors(paths[0]) == 1


def test_a_file_in_use_is_not_closed_for_others(files: OpenSegments, paths: list[Path]) -> None:
    with files.use(paths[0]) as first, files.use(paths[1]), files.use(paths[2]):
        assert len(files) == 3
        use(files, paths[3])
        assert first.size_bytes() == 0
        assert descriptors(paths[3]) == 0
    assert len(files) == 2


def test_a_file_that_goes_away_is_closed_by_its_last_user(
    files: OpenSegments, paths: list[Path]
) -> None:
    with files.use(paths[0]) as outer:
        with files.use(paths[0]):
            files.forget(paths[0], paths[5])
            with files.use(paths[0]) as other:
                assert other is not outer
        assert outer.size_bytes() == 0
        assert descriptors(paths[0]) == 2
    assert descriptors(paths[0]) == 1

    files.forget(paths[0])
    assert descriptors(paths[0]) == 0


def test_a_file_that_is_created_is_open_and_empty(files: OpenSegments, paths: list[Path]) -> None:
    paths[0].write_bytes(b"stale")
    use(files, paths[0])
    files.create(paths[0], is_durable=True)

    assert descriptors(paths[0]) == 1
    with files.use(paths[0]) as file:
        assert file.size_bytes() == 0
    for path in paths[1:]:
        files.create(path, is_durable=True)
    assert len(files) == 2


def test_a_file_that_is_missing_is_named(files: OpenSegments, tmp_path: Path) -> None:
    with pytest.raises(ReadFailedError, match=r"gone\.log"):
        use(files, tmp_path / "gone.log")
    assert len(files) == 0


def test_threads_share_the_files(files: OpenSegments, paths: list[Path]) -> None:
    """None meets a file that another has closed."""
    is_over = threading.Event()

    def read(seed: int) -> int:
        generator = Random(seed)
        count = 0
        while count < 50 and not is_over.is_set():
            path = generator.choice(paths)
            if generator.random() < 0.1:
                files.forget(path)
            with files.use(path) as file:
                count += file.size_bytes() + 1
        return count

    with ThreadPoolExecutor(4) as threads:
        try:
            assert list(threads.map(read, range(4))) == [50] * 4
        finally:
            is_over.set()
    assert len(files) <= 2
    assert sum(map(descriptors, paths)) == len(files)
