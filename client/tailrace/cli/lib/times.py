"""Times as people write and read them."""

import argparse
import re

from tailrace.cli.lib.parser import shown
from tailrace.wire import INTEGER_US_MIN

TIME_EXAMPLE = "2026-11-21T09:00Z"
TIME_HELP = f"{TIME_EXAMPLE} or 2026-11-21; without a zone it is UTC, as all times that are shown"


def time_us(word: str) -> int:
    """Microseconds since the epoch; times before it are those of no record."""
    from datetime import UTC, datetime, timedelta

    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shown(word)} is not a time like {TIME_EXAMPLE} or a date like 2026-11-21"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1))


def record_time_us(word: str) -> int:
    """The type of a record's time: as `time_us`, or microseconds since the epoch as a number."""
    if not re.fullmatch(r"[0-9]{1,18}", word):
        return time_us(word)
    number = int(word)
    if number < INTEGER_US_MIN:
        units = [1000, 1_000_000]  # milliseconds, seconds
        meant = [number * unit for unit in units if number * unit >= INTEGER_US_MIN]
        guess = f"; did you mean {meant[0]}" if meant else ""
        raise argparse.ArgumentTypeError(
            f"{word} is before 2001, since a number is microseconds{guess}"
        )
    return number


def time_text(time_us: int) -> str:
    """Of microseconds since the epoch: "2026-11-21T09:00:00Z"."""
    from datetime import UTC, datetime, timedelta

    try:
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
    except OverflowError:  # behind the year 9999
        return f"{time_us} µs since 1970"
    return time.isoformat().replace("+00:00", "Z")


def age_s(time: str) -> float:
    """How long ago, by this machine's clock, that was; 0 when it is ahead of it."""
    from datetime import UTC, datetime

    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
