"""Group requests at any broker, executed by the broker that coordinates the group.

A group's name says which one that is: the leader of its partition of `__groups`. Most requests of a
consumer name the consumer alone: the broker that knew it last is asked, then the others. A consumer
is registered with one group, so that one of them knows it at most.

While a coordinator changes, a request that has done nothing yet is tried again for a while. Over a
step of the ring groups go on in other partitions: where two brokers do not know of the same ones,
neither can say that nobody knows a consumer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import wraps

from tailrace_broker.model.errors import (
    ConsumerNotRegisteredError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    TailraceError,
)
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.group import GROUPS_TOPIC
from tailrace_broker.net.api.consumer_headers import read_confirmation, read_epoch
from tailrace_broker.net.api.consumers import saying_whether_to_create, subscription_of
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import Call, Handler, Response

# For how long a request is tried again while its coordinator changes; and how often.
RETRY_SECONDS_MAX = 5.0
RETRY_SECONDS = 0.05
# What a broker that forwards a consumer's request knows of the partitions that keep groups.
_GENERATION = b"tailrace-groups-generation"

_Once = Callable[[], Awaitable[Response]]


def of_group(handle: Handler) -> Handler:
    """Have a request that names a group executed by its coordinator."""

    @wraps(handle)
    async def routed(broker: Broker, call: Call) -> Response:
        if call.is_forwarded:
            return await handle(broker, call)
        return await _retried(broker, lambda: _by_group(broker, call, handle))

    return routed


def of_consumer(handle: Handler, *, is_repeatable: bool = True) -> Handler:
    """Have a request that names a consumer executed by the coordinator of its group.

    `is_repeatable`: it does the same once more when it names its delivery.
    """

    @wraps(handle)
    async def routed(broker: Broker, call: Call) -> Response:
        if call.is_forwarded:
            return await _answered(broker, call, handle)
        names_delivery = read_confirmation(call.headers).delivery is not None
        consumer_id = call.parameters.consumer_id
        return await _retried(
            broker,
            lambda: _by_consumer(broker, call, handle, consumer_id),
            repeats_unknown=is_repeatable and names_delivery,
        )

    return routed


def of_registration(handle: Handler, *, creates_topics: bool = False) -> Handler:
    """Have a registration executed by the coordinator of its group.

    Unless another group has the consumer: the coordinators of both know only their own.
    `creates_topics`: where the request does not say.
    """

    @wraps(handle)
    async def routed(broker: Broker, call: Call) -> Response:
        if call.is_forwarded:
            return await handle(broker, call)
        forwarded = saying_whether_to_create(call) if creates_topics else call
        return await _retried(
            broker, lambda: _register(broker, call, forwarded, handle), repeats_unknown=True
        )

    return routed


def retried(handle: Handler) -> Handler:
    """Try again while a coordinator changes."""

    @wraps(handle)
    async def routed(broker: Broker, call: Call) -> Response:
        if call.is_forwarded:
            return await handle(broker, call)
        return await _retried(broker, lambda: handle(broker, call))

    return routed


def other_coordinators(broker: Broker) -> list[int]:
    """Brokers beside this one that coordinate groups. NoLeaderError: some groups have nobody."""
    state = broker.ring.state
    topic = None if state is None else state.topics.get(GROUPS_TOPIC)
    for each in () if state is None or topic is None else topic.slices:
        owner = state.ranges[each.range_id] if state is not None else None
        if owner is not None and owner.leader is None and not owner.is_sealed:
            raise NoLeaderError(
                f"no broker leads range {each.range_id} now, which keeps groups; try again",
                topic=GROUPS_TOPIC,
                range=each.range_id,
            )
    return _leaders_of_groups(broker)


def _leaders_of_groups(broker: Broker) -> list[int]:
    """Likewise, whether some have nobody or not."""
    state = broker.ring.state
    topic = None if state is None else state.topics.get(GROUPS_TOPIC)
    if state is None or topic is None:
        return []
    leaders = [state.ranges[each.range_id].leader for each in topic.slices]
    ordinals = {leader.ordinal for leader in leaders if leader is not None}
    return sorted(ordinals - {broker.ordinal})


async def _retried(broker: Broker, once: _Once, *, repeats_unknown: bool = False) -> Response:
    """`repeats_unknown`: it does no harm when it has been executed already."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + RETRY_SECONDS_MAX
    may_be_done = False  # by an attempt before
    while True:
        broker.check_ready()
        try:
            return await once()
        except (NoLeaderError, NotLeaderError, NotReadyError, OutcomeUnknownError) as error:
            is_unsafe = error.write_attempted and not repeats_unknown
            if is_unsafe or loop.time() >= ends_s:
                if may_be_done and not error.write_attempted:
                    raise _attempted(error) from None
                raise
            may_be_done = may_be_done or error.write_attempted
        await asyncio.sleep(RETRY_SECONDS)


def _attempted(error: TailraceError) -> TailraceError:
    """A copy, for others may share the error, of a request that may be done all the same."""
    attempted = copy(error)
    attempted.write_attempted = True
    return attempted


async def _register(broker: Broker, call: Call, forwarded: Call, handle: Handler) -> Response:
    """Two registrations at the same time with two groups may both succeed, as may one while the
    coordinator of the other group does not answer.
    """
    if read_epoch(call.headers) is None:
        coordinator = broker.groups.leader_of(subscription_of(call)[1].group)
        for ordinal in _leaders_of_groups(broker):
            if ordinal != coordinator:
                try:
                    return await _forward(broker, ordinal, forwarded)
                except (NotLeaderError, NoLeaderError, NotReadyError, OutcomeUnknownError):
                    pass  # the consumer is free there, and the group is not
    return await _by_group(broker, call, handle, forwarded)


async def _by_group(
    broker: Broker, call: Call, handle: Handler, forwarded: Call | None = None
) -> Response:
    try:
        return await handle(broker, call)
    except NotLeaderError as error:
        leader = _coordinator_in(error)
        if leader in (None, broker.ordinal):  # a step has sealed the partition here
            raise
    return await _forward(broker, leader, forwarded or call)


async def _answered(broker: Broker, call: Call, handle: Handler) -> Response:
    """Handle what another broker has forwarded. NotReadyError: it knows of other partitions."""
    try:
        return await handle(broker, call)
    except ConsumerNotRegisteredError:
        generation = call.headers.get(_GENERATION)
        if generation is not None and generation != b"%d" % broker.groups.generation:
            raise _other_partitions() from None
        raise


def _other_partitions() -> NotReadyError:
    return NotReadyError("groups go on in other partitions, which not all brokers know yet")


async def _by_consumer(broker: Broker, call: Call, handle: Handler, consumer_id: str) -> Response:
    """One that cannot say whether it knows the consumer keeps nobody from asking the others."""
    refusal: TailraceError
    unsure: TailraceError | None = None
    generation = broker.groups.generation
    forwarded = call._replace(headers={**call.headers, _GENERATION: b"%d" % generation})
    try:
        return await handle(broker, call)
    except ConsumerNotRegisteredError as error:
        refusal = error
    except NotReadyError as error:
        refusal = unsure = error
    for ordinal in _likely_first(broker, consumer_id):
        try:
            response = await _forward(broker, ordinal, forwarded)
        except ConsumerNotRegisteredError:
            continue
        except (NoLeaderError, NotLeaderError, NotReadyError) as error:
            unsure = error
            continue
        broker.groups.note_coordinator(consumer_id, ordinal)
        return response
    other_coordinators(broker)  # all groups have one
    if generation != broker.groups.generation:
        raise _other_partitions()
    raise (unsure or refusal).with_traceback(None)


def _likely_first(broker: Broker, consumer_id: str) -> Sequence[int]:
    known = broker.groups.coordinator_of(consumer_id)
    return sorted(_leaders_of_groups(broker), key=lambda ordinal: ordinal != known)


def _coordinator_in(error: NotLeaderError) -> int | None:
    """Return who coordinates; None: the error is of another partition."""
    leader = error.members.get("leader")
    is_of_groups = error.members.get("topic") == GROUPS_TOPIC
    return leader if is_of_groups and isinstance(leader, int) else None


async def _forward(broker: Broker, ordinal: int, call: Call) -> Response:
    """As `Broker.forward_call`."""
    request = ForwardedCall(
        0,
        call.target,
        call.accept,
        call.method,
        call.content_type,
        tuple(call.headers.items()),
        bytes(call.body),
    )
    wait_ms = getattr(call.parameters, "wait_ms", 0)
    return Response(*await broker.forward_call(ordinal, request, wait_ms))
