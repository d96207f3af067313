"""Ask all questions, or those that are named: `python -m benchmarks [--store] [question …]`."""

from argparse import ArgumentParser
from collections.abc import Iterator
from importlib import import_module

from benchmarks.page import write_page
from benchmarks.report import Row, print_row, store_row
from tailrace_broker.app.allocator import keep_freed_memory

# Of a ring of three, by a module that one broker is asked by as well.
RING = "ring_"
RING_MODULES = ("single_event", "ndjson", "ready_made", "produce_to_received", "rss", "tail")
RING_BROKER_COUNT = 3
# A module each, imported when it is asked: the last needs PySpark.
QUESTIONS = (
    "single_event",
    "ndjson",
    "keyed_ndjson",
    "ready_made",
    "slow_partitions",
    "binary_read",
    "group_poll",
    "group_start",
    "single_event_readback",
    "recovery",
    "rss",
    "tail",
    "produce_to_received",
    "slow_senders",
    "ring_agreement",
    "role_change",
    *(RING + name for name in RING_MODULES),
    "ring_gap",
    "ring_catch_up",
    "steps",
    "step_copies",
    "spark_read",
)


def main() -> None:
    """Run one question after the other."""
    parser = ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("question", nargs="*", help=f"of {', '.join(QUESTIONS)}; all without any")
    parser.add_argument("--store", action="store_true", help="keep the rows, and write the page")
    parser.add_argument("--page", action="store_true", help="ask nothing; write the page")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.question) - set(QUESTIONS)):
        parser.error(f"no such question: {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if arguments.page:
        write_page()
        return
    keep_freed_memory()  # as in the broker: page faults are no part of codec or JSON check
    for name in arguments.question or QUESTIONS:
        for row in _rows(name):
            print_row(row)
            if arguments.store:
                store_row(row)
                write_page()


def _rows(question: str) -> Iterator[Row]:
    name = question.removeprefix(RING)
    if name in RING_MODULES and name != question:
        rows: Iterator[Row] = import_module(f"benchmarks.{name}").run(RING_BROKER_COUNT)
    else:
        rows = import_module(f"benchmarks.{question}").run()
    return rows


if __name__ == "__main__":
    main()
