"""Times as people write and read them."""

import argparse
import re

from tailrace.cli.lib.parser import shown
from tailrace.settings.quantities import DIGITS_MAX
from tailrace.wire import check_integer_us

TIME_EXAMPLE = "2026-11-21T09:00Z"
TIME_HELP = (
    f"{TIME_EXAMPLE}, 2026-11-21 or microseconds since the epoch; without a zone it is UTC, as all "
    "times that are shown"
)


def time_us(word: str) -> int:
    """Microseconds since the epoch, also given as such; times before it are those of no record."""
    from datetime import UTC, datetime, timedelta

    if is_integer_time(word):
        return _integer_us(int(word))
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shown(word)} is not a time like {TIME_EXAMPLE} or a date like 2026-11-21"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1))


def is_integer_time(word: str) -> bool:
    """Whether it is read as a number: eight digits are a date."""
    return re.fullmatch(f"[0-9]{{9,{DIGITS_MAX}}}", word) is not None


def _integer_us(value: int) -> int:
    try:
        check_integer_us(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


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
