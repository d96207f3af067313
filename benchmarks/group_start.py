"""How long from the registration of a group's first consumer to its first record?

One consumer after the other, each of a new group, over one connection: it registers, polls, and has
a record. Events of 1 KiB in 4 partitions, from memory. Times are the client's, a blocking one; what
two requests take that do nothing (`/ready`) is beside.

Sketch, µs:

| step                                                                   | µs   |
|------------------------------------------------------------------------|------|
| two requests of the client: http.client, loopback, wake-ups, 250 each  |  500 |
| registration: an event, appended to the groups' log, and its durable     |      |
| write to the journal                                                   |  300 |
| partitions shared out, positions set                                   |   50 |
| poll: a record of 4 partitions' batches of 1,000 as text: one is read  |      |
| from memory and inflated, 1 MiB                                        |  600 |
| sum                                                                    | 1450 |

Bound: the disk's write and the inflated batch.
"""

from collections.abc import Iterator
from time import perf_counter

import numpy as np

from benchmarks.batches import batch_requests
from benchmarks.broker import TOPIC, broker_on_disk, create_topic, produce, rss_max_mib
from benchmarks.report import Row
from tailrace.sync import Client
from tailrace.wire import Codec

PARTITION_COUNT = 4
BATCH_COUNT = 8
GROUP_COUNT = 500
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
AIMS = {"p50_ms": 3, "p99_ms": 10}


def run() -> Iterator[Row]:
    """Ask one broker with ever more groups."""
    floor_s, registered_s, first_record_s = [], [], []
    with broker_on_disk() as broker, Client(broker.url) as client:
        create_topic(broker, partitionsPerRange=PARTITION_COUNT)
        produce(broker, batch_requests(Codec.LZ4, PARTITION_COUNT), BATCH_COUNT, PARTITION_COUNT)
        for number in range(GROUP_COUNT):
            name = f"group-{number}"
            start_s = perf_counter()
            assert client.is_ready()
            assert client.is_ready()
            floor_s.append(perf_counter() - start_s)
            start_s = perf_counter()
            client.register(name, name, [TOPIC], on_new_group="startFromEarliest")
            registered_s.append(perf_counter() - start_s)
            polled = client.poll(name, delivery=0, form="ndjson", max_records=1)
            first_record_s.append(perf_counter() - start_s)
            assert polled.body
        rss_loaded_mib = rss_max_mib(broker)
    figures = {
        **_quantiles("", first_record_s),
        **_quantiles("registered_", registered_s),
        **_quantiles("two_requests_", floor_s),
        "rss_max_mib": rss_loaded_mib,
    }
    yield Row("group_start", "a new group, from registration to its first record", figures, AIMS)


def _quantiles(prefix: str, seconds: list[float]) -> dict[str, float]:
    return {
        f"{prefix}{name}_ms": float(np.quantile(seconds, share)) * 1e3
        for name, share in QUANTILES.items()
    }
