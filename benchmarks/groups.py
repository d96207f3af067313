"""Consumer groups as a load: each consumer on a connection of its own, until it has read all.

A poll that names no delivery confirms the one before, so a consumer's requests are all the same.
"""

from benchmarks.broker import TOPIC
from benchmarks.load import Load, LoadResult, Target, request_bytes, run_in_own_process
from tailrace.local.broker import LocalBroker
from tailrace.protocol.group_requests import Form, poll_request
from tailrace.sync import Client

# No consumer is to be removed while it waits for its turn.
SESSION_MS = 3_600_000


def read_by_groups(
    broker: LocalBroker,
    name: str,
    *,
    group_count: int,
    consumer_count: int,
    form: Form,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> LoadResult:
    """New groups read the topic from its start, one after the other, by some consumers each.

    Names begin with `name`. AssertionError when they have not read all of it.
    """
    consumers = [
        (f"{name}-{group}", f"{name}-{group}-{consumer}")
        for group in range(group_count)
        for consumer in range(consumer_count)
    ]
    with Client(broker.url) as client:
        for group, consumer in consumers:
            client.register(
                consumer, group, [TOPIC], on_new_group="startFromEarliest", session_ms=SESSION_MS
            )
        requests = [
            request_bytes(
                poll_request(consumer, form=form, max_records=max_records, max_bytes=max_bytes)
            )
            for _, consumer in consumers
        ]
        load = Load([Target(broker.port, requests)], None, consumer_count, [broker.pid])
        result = run_in_own_process(load)
        lags = {each.group: each.lag for each in client.groups()}
    assert {lags[group] for group, _ in consumers} == {0}, lags
    return result
