"""The main job's own checks: they must find what they are there to find."""

import gzip
from pathlib import Path

import pytest

from examples.up_events import Events, OrderCheck, UpError, load_events

EVENTS = Events("t", ".k", [b"a", b"b", b"a"], [b"1", b"2", b"3"])


def test_accepts_what_was_sent_twice() -> None:
    check = OrderCheck(EVENTS, repeat_count=2)

    check.feed(0, [(b"a", b"1"), (b"a", b"3"), (b"a", b"1")])
    check.feed(0, [(b"a", b"3")])
    check.feed(1, [(b"b", b"2"), (b"b", b"2")])

    assert check.finish() == 6


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([(0, b"a", b"3"), (0, b"a", b"1"), (0, b"b", b"2")], "event 1 of key b'a' is not the one"),
        ([(0, b"a", b"1"), (0, b"a", b"1"), (0, b"a", b"3")], "event 2 of key b'a' is not the one"),
        ([(0, b"b", b"2"), (0, b"b", b"2")], "key b'b' has more events than were sent"),
        ([(0, b"a", b"1"), (0, b"b", b"2")], "key b'a': the last 1 events are missing"),
        ([(0, b"a", b"1"), (0, b"a", b"3")], "key b'b': the last 1 events are missing"),
        ([(0, b"c", b"1")], "partition 0 holds key b'c', which was not sent"),
        ([(0, None, b"1")], "partition 0 holds key None, which was not sent"),
        ([(0, b"a", b"1"), (1, b"a", b"3")], "key b'a' is in two partitions"),
    ],
    ids=["swapped", "doubled", "one-too-many", "lost", "key-lost", "foreign", "keyless", "moved"],
)
def test_refuses_anything_else(records: list[tuple[int, bytes, bytes]], sentence: str) -> None:
    check = OrderCheck(EVENTS, repeat_count=1)

    with pytest.raises(UpError, match=sentence):
        _feed_and_finish(check, records)


def _feed_and_finish(check: OrderCheck, records: list[tuple[int, bytes, bytes]]) -> None:
    for partition, key, value in records:
        check.feed(partition, [(key, value)])
    check.finish()


def test_loads_plain_and_compressed_files(tmp_path: Path) -> None:
    lines = b'{"user":{"id":7}}\r\n\n{"user":{"id":"x"}}'
    plain, compressed = tmp_path / "my orders.ndjson", tmp_path / "my orders.ndjson.gz"
    plain.write_bytes(lines)
    compressed.write_bytes(gzip.compress(lines))

    for path in (plain, compressed):
        assert load_events(path, key=".user.id") == Events(
            "my-orders", ".user.id", [b"7", b"x"], [b'{"user":{"id":7}}', b'{"user":{"id":"x"}}']
        )


@pytest.mark.parametrize(
    ("lines", "key", "sentence"),
    [
        (b'{"a":1}\n{"b":1}\n', ".a", "line 2 has no .a"),
        (b'{"a":1}\n{"a":\n', ".a", "line 2 is not JSON"),
        (b'{"a":1}\n', "a", "KEY: "),
        (b"\n", ".a", "holds no event"),
    ],
)
def test_says_what_is_wrong_with_a_file(
    tmp_path: Path, lines: bytes, key: str, sentence: str
) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(lines)

    with pytest.raises(UpError, match=sentence):
        load_events(path, key=key)


def test_says_that_a_file_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UpError, match="cannot be read"):
        load_events(tmp_path / "none.ndjson", key=".a")
