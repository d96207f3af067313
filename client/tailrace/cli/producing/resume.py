"""Pure: where a cut `tailrace produce` goes on, so that each line is stored exactly once.

One request is sent after the other, so at most one of them has an unknown outcome, or is stored in
some partitions only. The token holds that request's producer id and sequence and its exact lines:
sent again, brokers that have it recognise it. All that is before it is stored, and nothing
behind it was sent.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from tailrace.errors import TailraceError

_TOKEN = re.compile(r"([0-9a-f]{32})-(\d{1,18})-(\d{1,15})-(\d{1,7})-([0-9a-f]{8})((?:\.\d{1,9})*)")

_BLANK = (b"\n", b"\r\n", b"\r", b"")


class ResumeRefusedError(TailraceError):
    """A token is of another input, topic or option; nothing was sent."""


class Token(NamedTuple):
    """`line_count` lines from `line` (from 1) on were sent as request `sequence` of `producer_id`.

    No lines: `sequence` is that of the next request. `checksum`: of the options and the input up
    to the last of these lines. `stored`: partitions that are known to have their records.
    """

    producer_id: str
    sequence: int
    line: int
    line_count: int
    checksum: int
    stored: tuple[int, ...] = ()

    def __str__(self) -> str:
        numbers = f"{self.sequence}-{self.line}-{self.line_count}-{self.checksum:08x}"
        return f"{self.producer_id}-{numbers}" + "".join(f".{each}" for each in self.stored)


def parse_token(text: str) -> Token:
    """What `str` of it gives. ValueError: it is none."""
    match_ = _TOKEN.fullmatch(text)
    if match_ is None or int(match_[3]) < 1:
        raise ValueError("is no token that tailrace produce has printed; copy all of it")
    producer_id, sequence, line, line_count, checksum, stored = match_.groups()
    partitions = tuple(int(each) for each in stored.split(".")[1:])
    return Token(
        producer_id, int(sequence), int(line), int(line_count), int(checksum, 16), partitions
    )


def resuming(words: Sequence[str], token: Token) -> list[str]:
    """The words of a command, with this token in place of an earlier one."""
    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    for word in words[:end]:
        if kept[-1:] == ["--resume"]:
            kept.pop()
        elif not word.startswith("--resume="):
            kept.append(word)
    return [*kept, "--resume", str(token), *words[end:]]


def event_count(lines: Iterable[bytes]) -> int:
    """How many of them are events: not the blank ones."""
    return sum(line not in _BLANK for line in lines)


class Replay:
    """Finds a token's lines in the input that is given again; `checksum`: of the options."""

    def __init__(self, token: Token, checksum: int) -> None:
        self.token = token
        self._skip_count = token.line - 1
        self._begun: list[bytes] = []  # the lines of the token's request
        self.checksum = checksum  # and of the lines that are skipped
        self.event_count = 0  # in them
        self.is_done = False

    def take(self, lines: Sequence[bytes]) -> Iterator[tuple[bool, Sequence[bytes]]]:
        """The next lines of the input -> what is to be sent of them.

        True with lines: the token's request. ResumeRefusedError: the input differs.
        """
        skipped, lines = lines[: self._skip_count], lines[self._skip_count :]
        self._skip_count -= len(skipped)
        self.checksum = crc32(b"".join(skipped), self.checksum)
        self.event_count += event_count(skipped)
        count = self.token.line_count - len(self._begun)
        self._begun += lines[:count]
        if self._skip_count or len(self._begun) < self.token.line_count:
            return
        if crc32(b"".join(self._begun), self.checksum) != self.token.checksum:
            raise ResumeRefusedError(
                f"--resume does not fit: the topic, an option, or the input up to line {self._last}"
                " differs from the run that printed it, and nothing was sent. Check them, and give "
                "the same"
            )
        self.is_done = True
        if self._begun:
            yield True, self._begun
        if lines[count:]:
            yield False, lines[count:]

    def end(self) -> None:
        """End the input. ResumeRefusedError: it had too few lines."""
        if not self.is_done:
            raise ResumeRefusedError(
                f"--resume does not fit: the input has fewer than {self._last:,} lines, and "
                "nothing was sent. Give the input of the run that printed it, from its first line"
            )

    @property
    def _last(self) -> int:
        """The last line that the token knows."""
        return self.token.line - 1 + self.token.line_count
