"""Ask all questions, or those that are named: `python -m benchmarks [question …]`."""

import sys
from importlib import import_module

from tailrace_broker.app.allocator import keep_freed_memory

# A module each, imported when it is asked: the last needs PySpark.
QUESTIONS = ("single_event", "ndjson", "binary_read", "tail", "slow_senders", "spark_read")


def main(names: list[str]) -> None:
    """Run one question after the other."""
    unknown = set(names) - set(QUESTIONS)
    if unknown:
        sys.exit(
            f"no such question: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}"
        )
    keep_freed_memory()  # as in the broker: page faults are no part of codec or JSON check
    for name in names or QUESTIONS:
        import_module(f"benchmarks.{name}").run()


if __name__ == "__main__":
    main(sys.argv[1:])
