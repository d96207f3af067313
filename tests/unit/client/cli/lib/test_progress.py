"""A bar on a terminal, for work longer than a second; nothing anywhere else."""

import io
import itertools

from tailrace.cli.lib.progress import ERASE_LINE, Progress


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def progress(stream: io.StringIO, total: int | None, *, is_wanted: bool = True) -> Progress:
    """Its clock advances by 0.6 s whenever it is read."""
    times_s = itertools.count(100.0, 0.6)
    return Progress(total, is_wanted=is_wanted, stream=stream, clock_s=lambda: next(times_s))


def test_work_of_less_than_a_second_shows_nothing() -> None:
    stream = Terminal()
    with progress(stream, 10) as shown:
        shown.update(done=1, events=1, size_bytes=10)

    assert stream.getvalue() == ""


def test_longer_work_shows_how_far_it_is_and_leaves_a_clean_line() -> None:
    stream = Terminal()
    with progress(stream, 2_000) as shown:
        shown.update(done=100, events=5, size_bytes=10)
        shown.update(done=1_000, events=1_000, size_bytes=2_048)
        drawn = stream.getvalue()

    bar = "█" * 15 + " " * 15
    assert drawn == f"{ERASE_LINE}[{bar}]  50%  1,000 events, 2.0 KiB"
    assert stream.getvalue() == drawn + ERASE_LINE


def test_without_a_total_there_is_no_bar() -> None:
    for total in (None, 0):
        stream = Terminal()
        with progress(stream, total) as shown:
            shown.update(done=0, events=1, size_bytes=1)
            shown.update(done=0, events=1, size_bytes=1)
            assert stream.getvalue() == f"{ERASE_LINE}1 event, 1 byte"


def test_a_file_that_grows_is_never_more_than_done() -> None:
    stream = Terminal()
    with progress(stream, 1) as shown:
        shown.update(done=9, events=9, size_bytes=9)
        shown.update(done=9, events=9, size_bytes=9)

    assert "] 100%" in stream.getvalue()


def test_nothing_is_shown_in_a_file_or_when_it_is_not_wanted() -> None:
    for stream, is_wanted in ((io.StringIO(), True), (Terminal(), False)):
        with progress(stream, 1, is_wanted=is_wanted) as shown:
            for _ in range(3):
                shown.update(done=1, events=1, size_bytes=1)

        assert stream.getvalue() == ""
