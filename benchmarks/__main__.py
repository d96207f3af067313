"""Ask all questions, or those that are named: `python -m benchmarks [question …]`."""

import sys

from benchmarks import binary_read, ndjson, single_event, tail
from tailrace_broker.app.allocator import keep_freed_memory

QUESTIONS = {
    "single_event": single_event,
    "ndjson": ndjson,
    "binary_read": binary_read,
    "tail": tail,
}


def main(names: list[str]) -> None:
    """Run one question after the other."""
    unknown = set(names) - set(QUESTIONS)
    if unknown:
        sys.exit(
            f"no such question: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}"
        )
    keep_freed_memory()  # as in the broker: page faults are no part of codec or JSON check
    for name in names or QUESTIONS:
        QUESTIONS[name].run()


if __name__ == "__main__":
    main(sys.argv[1:])
