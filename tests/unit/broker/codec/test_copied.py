"""The checksum by which copies of logs are compared."""

from tailrace.wire import BatchHeader
from tailrace_broker.codec.copied import chained
from tests.support.storage.followers import stored_batch


def headers(*values: bytes, first: int = 0) -> list[BatchHeader]:
    return [stored_batch([value], first + index).header for index, value in enumerate(values)]


def test_the_parts_of_a_log_make_the_checksum_of_the_whole() -> None:
    whole = headers(b"a", b"b", b"c")

    assert chained(whole) == chained(whole[1:], chained(whole[:1]))
    assert chained([]) == 0


def test_other_batches_or_other_places_have_another_checksum() -> None:
    checksums = [
        chained(headers(b"a", b"b")),
        chained(headers(b"b", b"a")),
        chained(headers(b"a", b"c")),
        chained(headers(b"a")),
        chained(headers(b"a", b"b", first=1)),
    ]
    assert len({*checksums}) == len(checksums)
