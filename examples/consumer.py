"""Reads a topic and goes on where it stopped the last time, by a file with its offsets.

    python examples/consumer.py flights --offsets flights.offsets.json [--follow]

At least once: the offsets are saved after the records are handled. One process reads all
partitions; consumer groups, which share them out, are not there yet.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tailrace.errors import TailraceError
from tailrace.sync import Client

URL = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")
WAIT_MS = 200  # for a partition that has nothing new; so long others wait, too


def main() -> None:
    """Read to the end of each partition; with --follow also what comes, until Ctrl-C."""
    parser = argparse.ArgumentParser()
    parser.add_argument("topic")
    parser.add_argument("--offsets", type=Path, required=True)
    parser.add_argument("--follow", action="store_true")
    called = parser.parse_args()
    try:
        with Client(URL) as client:
            offsets = starts(client, called.topic, called.offsets)
            while read_on(client, called.topic, offsets, called.offsets) or called.follow:
                pass
    except TailraceError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        pass


def handle(record: dict[str, Any]) -> None:
    """Your work; a record comes again when this raises."""
    print(record["partition"], record["offset"], record["key"], json.dumps(record["value"]))


def starts(client: Client, topic: str, path: Path) -> dict[int, int]:
    """The next offset of each partition: the saved one, else the earliest."""
    saved = json.loads(path.read_text()) if path.exists() else {}
    return {
        each.partition: saved.get(str(each.partition), each.readable().start)
        for each in client.offsets([topic])
    }


def read_on(client: Client, topic: str, offsets: dict[int, int], path: Path) -> bool:
    """Handle what came in each partition; whether anything did."""
    has_read = False
    for partition, offset in offsets.items():
        fetched = client.read_lines(topic, partition, offset, wait_ms=WAIT_MS)
        for line in fetched.body.splitlines():
            handle(json.loads(line))
            has_read = True
        offsets[partition] = fetched.next_offset
        save(offsets, path)
    return has_read


def save(offsets: dict[int, int], path: Path) -> None:
    """Whole or not at all, also when this process is killed in between."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(offsets))
    new.replace(path)


if __name__ == "__main__":
    main()
