from pathlib import Path

from tailrace_broker.storage.files.disk_use import DiskUse, tree_bytes

BLOCK = b"x" * 4096


def write(path: Path, block_count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BLOCK * block_count)


def blocks(size_bytes: int | None) -> int:
    assert size_bytes is not None
    return size_bytes // len(BLOCK)


def test_all_counts_but_the_segments_of_topics_that_are_there(tmp_path: Path) -> None:
    use = DiskUse(tmp_path)
    empty = use.other_bytes()
    for name in ("meta.json", "journal/1.journal", "metadata/0.blocks", "spare/file-0"):
        write(tmp_path / name, 1)
    write(tmp_path / "topic" / "0" / "0.log", 100)
    write(tmp_path / "trash" / "a" / "0" / "0.log", 10)

    assert empty == 0
    assert blocks(use.other_bytes()) == 14
    assert tree_bytes(tmp_path / "topic") == 100 * len(BLOCK)


def test_the_files_of_a_deleted_topic_are_looked_at_once(tmp_path: Path) -> None:
    use = DiskUse(tmp_path)
    write(tmp_path / "trash" / "a" / "0" / "0.log", 1)
    found = [blocks(use.other_bytes())]
    write(tmp_path / "trash" / "a" / "0" / "0.log", 2)
    write(tmp_path / "trash" / "b" / "0" / "0.log", 4)
    found.append(blocks(use.other_bytes()))
    (tmp_path / "trash" / "a").rename(tmp_path / "elsewhere")
    found.append(blocks(use.other_bytes()))

    assert found == [1, 5, 4]


def test_a_disk_that_does_not_answer_takes_nobody_knows_how_much(tmp_path: Path) -> None:
    (tmp_path / "trash").write_bytes(b"a file is no trash")

    assert DiskUse(tmp_path).other_bytes() is not None
    assert DiskUse(tmp_path / "gone").other_bytes() is None
