"""Runs in a pod: the fewest replicas that any range has in sync, until standard input ends.

`URL`. Five times a second one number a line, of brokers that answer.
"""

import sys
import threading

from tailrace.errors import TailraceError
from tailrace.protocol.ring_values import RingDetails
from tailrace.sync import Client

PERIOD_S = 0.2
ANSWER_S_MAX = 2.0


def fewest(ring: RingDetails) -> int:
    """Members of an ISR that are no ghosts, and not of an earlier process."""
    processes = {(each.ordinal, each.registration) for each in ring.registrations}
    return min(
        sum(not each.ghost and (each.ordinal, each.registration) in processes for each in one.isr)
        for one in ring.ranges
    )


def main(url: str) -> None:
    """Until standard input ends."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(PERIOD_S):
            try:
                with Client(url, timeout_s=ANSWER_S_MAX) as client:
                    print(fewest(client.ring()), flush=True)
            except TailraceError:
                pass  # that broker is away

    asking = threading.Thread(target=ask)
    asking.start()
    sys.stdin.read()
    stop.set()
    asking.join()


if __name__ == "__main__":
    main(sys.argv[1])
