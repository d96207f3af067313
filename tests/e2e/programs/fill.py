"""Runs in a pod: stores events that do not compress, as large as 64 KiB each.

`URL TOPIC MEBIBYTES`.
"""

import json
import os
import sys

from tailrace.request_producer import RequestProducer
from tailrace.sync import Client

EVENT_BYTES = 64 * 1024


def main(url: str, topic: str, mebibytes: int) -> None:
    """Event by event, over all partitions."""
    with Client(url, timeout_s=30.0) as client:
        producer = RequestProducer(client)
        for number in range(mebibytes * 1024 * 1024 // EVENT_BYTES):
            event = json.dumps({"random": os.urandom(EVENT_BYTES // 2).hex()})
            producer.produce_lines(topic, event.encode(), key=f"key-{number}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
