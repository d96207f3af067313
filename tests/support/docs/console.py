"""Commands and Python blocks of a Markdown document, and whether what they print is what it says.

A `console` block has commands behind "$ " (lines behind "> " continue one), each with what it
prints below it. A `python` block is one program; a `text` block right behind it is what it prints,
and without one it may print anything. In what is printed "…" is any text, alone on a line
for any lines.
"""

import re
from typing import NamedTuple

FENCE = "```"
COMMAND = "$ "
CONTINUATION = "> "
ANYTHING = "…"

# What differs from run to run, and what replaces it on both sides.
MASKS = [
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", "<time>"),
    (r"\b1\d{15}\b", "<µs>"),  # since the epoch, until the year 2033
    (r'(Ms|Seconds|Bytes)":[\d.]+', r'\1":<figure>'),
    (
        r"(?:(?<=\s)-)?\b\d[\d,]*(?:\.\d+)? ?(?:µs|ms|s|m|h|d|[KMGT](?:iB)?|bytes?|/s)(?!\w)",
        "<figure>",
    ),
    (r"\b[0-9a-f]{4}(?=  +<figure>$)", "<incarnation>"),  # `tailrace status`: before UP
    (r"  +", " "),  # the width of a table's columns follows its figures
    (r" +$", ""),
]


class Program(NamedTuple):
    """One command or Python block; lines [`start`, `end`) of the document are what it prints."""

    language: str
    line: int
    text: str
    start: int
    end: int

    @property
    def is_shown(self) -> bool:
        """Whether the document says what it prints; of a command nothing says: nothing."""
        return self.language == "console" or self.start < self.end


def programs_of(document: str) -> list[Program]:
    """All of a document, in its order; lines count from 0."""
    lines = document.split("\n")
    programs: list[Program] = []
    for language, start, end in _blocks(lines):
        if language == "console":
            programs += _commands(lines, start, end)
        elif language == "python":
            programs.append(Program(language, start, "\n".join(lines[start:end]), end, end))
        elif language == "text" and programs and _is_right_behind(programs[-1], lines, start):
            programs[-1] = programs[-1]._replace(start=start, end=end)
    return programs


def shown(document: str, program: Program) -> str:
    """What the document says that it prints."""
    return "\n".join(document.split("\n")[program.start : program.end])


def is_as_shown(text: str, printed: str) -> bool:
    """Whether the same was printed, but for what differs from run to run."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == ANYTHING else _pattern(line) + r"\n"
        for line in _lines(masked(text))
    )
    printed_lines = "".join(f"{line}\n" for line in _lines(masked(printed)))
    return re.fullmatch(pattern, printed_lines) is not None


def masked(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def rewritten(document: str, printed: dict[Program, str]) -> str:
    """The document with these outputs; as many lines as before where it says that more follow."""
    lines = document.split("\n")
    for program in sorted(printed, key=lambda each: each.start, reverse=True):
        old = lines[program.start : program.end]
        new = _lines(printed[program])
        if old and old[-1].strip() == ANYTHING:
            new = [*new[: len(old) - 1], ANYTHING]
        lines[program.start : program.end] = new
    return "\n".join(lines)


def _blocks(lines: list[str]) -> list[tuple[str, int, int]]:
    """Language and lines [start, end) inside of each fenced block."""
    fences = [number for number, line in enumerate(lines) if line.startswith(FENCE)]
    assert len(fences) % 2 == 0, "a fence is left open"
    return [
        (lines[opening].removeprefix(FENCE).strip(), opening + 1, closing)
        for opening, closing in zip(fences[::2], fences[1::2], strict=True)
    ]


def _commands(lines: list[str], start: int, end: int) -> list[Program]:
    """The commands of one block; AssertionError when it does not start with one."""
    assert lines[start].startswith(COMMAND), lines[start]
    starts = [number for number in range(start, end) if lines[number].startswith(COMMAND)]
    programs = []
    for number, next_number in zip(starts, [*starts[1:], end], strict=True):
        output = number + 1
        while output < next_number and lines[output].startswith(CONTINUATION):
            output += 1
        words = [line[len(COMMAND) :] for line in lines[number:output]]
        programs.append(Program("console", number, "\n".join(words), output, next_number))
    return programs


def _is_right_behind(program: Program, lines: list[str], start: int) -> bool:
    """Whether only blank lines are between a Python block and the block at `start`."""
    between = lines[program.end + 1 : start - 1]
    return program.language == "python" and not any(between)


def _lines(text: str) -> list[str]:
    return text.rstrip().split("\n") if text.strip() else []


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split(ANYTHING)))
