"""Sans-IO: builds the requests of consumers and groups, and reads their answers (docs/protocol.md).

As `tailrace.protocol.requests`, whose rules hold here too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import quote, urlencode

from tailrace.protocol.group_values import (
    GroupConsumer,
    GroupDetails,
    GroupInfo,
    GroupPartition,
    GroupReset,
    MovedPartition,
    OnNewGroup,
    Polled,
    Registered,
    TopicPartition,
)
from tailrace.protocol.requests import (
    DELIVERY_HEADER,
    Answer,
    Request,
    check_status,
    json_request,
    parse_json,
    read_answer,
    time_on_wire,
)
from tailrace.values import from_document, wire_name
from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE

Form = Literal["batch", "json", "ndjson"]

_CONTENT_TYPES: Mapping[Form, str] = {
    "batch": BATCH_CONTENT_TYPE,
    "json": JSON_CONTENT_TYPE,
    "ndjson": NDJSON_CONTENT_TYPE,
}
RETRY_AFTER_S = 1.0  # what a proxy on the way has left out


class Named(TypedDict, total=False):
    """What a consumer says about what it got before; left out: it does not say.

    `delivery`: the number of the delivery that it has dealt with, 0: of none. A poll without it
    confirms whatever was delivered last. `assignment_epoch`: the last one that it received.
    """

    delivery: int | None
    assignment_epoch: int | None


class PollParameters(Named, total=False):
    """What every poll takes; what is left out is left to the broker.

    `form` of the body: "batch" (whole batches; the default), "ndjson" or "json". `max_records`
    bounds the last two, `max_bytes` all. `wait_ms`: how long the first record may take.
    """

    form: Form
    max_records: int | None
    max_bytes: int | None
    wait_ms: int | None


# --- consumers ------------------------------------------------------------------------------------


def register_request(
    consumer_id: str,
    group: str,
    topics: Iterable[str],
    *,
    on_new_group: OnNewGroup | None = None,
    session_ms: int | None = None,
    create_topics: bool | None = None,
    assignment_epoch: int | None = None,
) -> Request:
    """Safe to repeat with the same values. With `assignment_epoch` it does not join again."""
    given = {
        "on_new_group": on_new_group,
        "session_ms": session_ms,
        "create_topics": create_topics,
    }
    members = {name: value for name, value in given.items() if value is not None}
    request = json_request(
        "POST",
        "/v1/consumer/register",
        {"id": consumer_id, "group": group, "topics": list(topics), **members},
    )
    named = _named_headers({"assignment_epoch": assignment_epoch})
    return replace(request, headers={**request.headers, **named})


def parse_registered(answer: Answer) -> Registered:
    """The consumer as it is registered."""
    return parse_json(answer, lambda document: from_document(Registered, document))


def poll_request(consumer_id: str, **parameters: Unpack[PollParameters]) -> Request:
    """Safe to repeat when it names its delivery: the same records come again."""
    limits = {
        "max_records": parameters.get("max_records"),
        "max_bytes": parameters.get("max_bytes"),
        "wait_ms": parameters.get("wait_ms"),
    }
    headers = _named_headers(parameters)
    headers["Accept"] = _CONTENT_TYPES[parameters.get("form", "batch")]
    return Request("POST", _consumer_target("poll", consumer_id, limits), headers)


def parse_polled(answer: Answer) -> Polled:
    """The body unread."""
    check_status(answer)
    return read_answer(answer, lambda: _polled(answer))


def commit_request(consumer_id: str, **named: Unpack[Named]) -> Request:
    """Safe to repeat."""
    return Request("POST", _consumer_target("commit", consumer_id), _named_headers(named))


def goodbye_request(consumer_id: str, *, commit: bool = True, **named: Unpack[Named]) -> Request:
    """With `commit` the named delivery, or else the last one, is confirmed."""
    wanted = {"commit": "true" if commit else "false"}
    return Request("POST", _consumer_target("goodbye", consumer_id, wanted), _named_headers(named))


def parse_done(answer: Answer) -> None:
    """Has no members: the status says that it is done."""
    check_status(answer)


# --- groups ---------------------------------------------------------------------------------------


def groups_request() -> Request:
    """All groups."""
    return Request("GET", "/v1/groups")


def parse_groups(answer: Answer) -> list[GroupInfo]:
    """Sorted by name."""
    return parse_json(
        answer, lambda document: [from_document(GroupInfo, group) for group in document["groups"]]
    )


def group_request(name: str) -> Request:
    """One group, with its consumers and partitions."""
    return Request("GET", _group_target(name))


def parse_group(answer: Answer) -> GroupDetails:
    """In the broker's order."""
    return parse_json(
        answer,
        lambda document: GroupDetails(
            from_document(GroupInfo, document),
            document["assignmentEpoch"],
            tuple(map(_group_consumer, document["consumers"])),
            tuple(from_document(GroupPartition, partition) for partition in document["partitions"]),
        ),
    )


def reset_group_request(
    name: str,
    *,
    to: Literal["earliest", "latest"] | None = None,
    timestamp_us: int | None = None,
    offsets: Mapping[str, Mapping[int, int]] | None = None,
    topics: Iterable[str] | None = None,
    dry_run: bool = False,
) -> Request:
    """One of `to`, `timestamp_us` and `offsets` says where to."""
    given = {
        "to": to,
        "timestamp_us": None if timestamp_us is None else time_on_wire(timestamp_us),
        "offsets": None if offsets is None else _offsets_document(offsets),
        "topics": None if topics is None else list(topics),
        "dry_run": dry_run or None,
    }
    members = {key: value for key, value in given.items() if value is not None}
    return json_request("POST", f"{_group_target(name)}/reset", members)


def parse_group_reset(answer: Answer) -> GroupReset:
    """What was moved, or would be."""
    return parse_json(
        answer,
        lambda document: from_document(
            GroupReset,
            document,
            partitions=tuple(
                from_document(MovedPartition, partition) for partition in document["partitions"]
            ),
        ),
    )


def publish_offsets_request(
    name: str, source: str, offsets: Mapping[str, Mapping[int, int]]
) -> Request:
    """How far a reader is that keeps its offsets itself."""
    members = {"source": source, "offsets": _offsets_document(offsets)}
    return json_request("PUT", f"{_group_target(name)}/offsets", members)


def delete_group_request(name: str) -> Request:
    """The group with its offsets."""
    return Request("DELETE", _group_target(name))


# --- helpers --------------------------------------------------------------------------------------


def _consumer_target(
    verb: str, consumer_id: str, wanted: Mapping[str, object] | None = None
) -> str:
    """With those parameters that are given."""
    given = {wire_name(name): value for name, value in (wanted or {}).items() if value is not None}
    return f"/v1/consumer/{verb}?{urlencode({'consumerId': consumer_id, **given})}"


def _group_target(name: str) -> str:
    return f"/v1/groups/{quote(name, safe='')}"


def _named_headers(named: Named) -> dict[str, str]:
    headers = {
        DELIVERY_HEADER: named.get("delivery"),
        "Tailrace-Assignment-Epoch": named.get("assignment_epoch"),
    }
    return {name: str(value) for name, value in headers.items() if value is not None}


def _polled(answer: Answer) -> Polled:
    headers = answer.headers
    is_empty = answer.status == 204
    return Polled(
        answer.body,
        int(headers["tailrace-delivery"]),
        int(headers["tailrace-assignment-epoch"]),
        _offsets_by_place(headers.get("tailrace-start-offsets", "")),
        float(headers.get("retry-after", RETRY_AFTER_S)) if is_empty else None,
        _offsets_by_place(headers.get("tailrace-end-offsets", "")),
    )


def _offsets_by_place(text: str) -> dict[tuple[str, int], int]:
    """Of "flights/3:1702,orders/0:12"."""
    offsets = {}
    for entry in filter(None, text.split(",")):
        place, _, offset = entry.strip().rpartition(":")
        topic, _, partition = place.rpartition("/")
        offsets[topic, int(partition)] = int(offset)
    return offsets


def _group_consumer(document: Any) -> GroupConsumer:
    partitions = tuple(
        from_document(TopicPartition, partition) for partition in document["partitions"]
    )
    return from_document(GroupConsumer, document, partitions=partitions)


def _offsets_document(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in by_partition.items()}
        for topic, by_partition in offsets.items()
    }
