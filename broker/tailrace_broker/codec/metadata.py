"""The broker's small JSON files: `meta.json` (who this disk is) and `metadata/topics.json`."""

from typing import TypeVar
from uuid import UUID

import msgspec

from tailrace_broker.model.errors import CallerError, CorruptMetadataError
from tailrace_broker.model.topic import Topic

FORMAT_VERSION = 1

T = TypeVar("T")


class DiskIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """`meta.json`: written once, when the data directory is new."""

    cluster_id: UUID
    ordinal: int
    incarnation: UUID
    registration: int
    version: int = FORMAT_VERSION


class _Topics(msgspec.Struct, frozen=True, rename="camel"):
    topics: list[Topic]
    version: int = FORMAT_VERSION


def encode_identity(identity: DiskIdentity) -> bytes:
    """`meta.json`."""
    return msgspec.json.format(msgspec.json.encode(identity)) + b"\n"


def decode_identity(stored: bytes) -> DiskIdentity:
    """Read `meta.json`; CorruptMetadataError."""
    identity = _decode(stored, DiskIdentity, "meta.json")
    _check_version(identity.version, "meta.json")
    return identity


def encode_topics(topics: list[Topic]) -> bytes:
    """`metadata/topics.json`."""
    return msgspec.json.format(msgspec.json.encode(_Topics(topics))) + b"\n"


def decode_topics(stored: bytes) -> list[Topic]:
    """Read `metadata/topics.json`; CorruptMetadataError."""
    file = _decode(stored, _Topics, "metadata/topics.json")
    _check_version(file.version, "metadata/topics.json")
    return file.topics


def _check_version(version: int, name: str) -> None:
    if version != FORMAT_VERSION:
        raise CorruptMetadataError(f"{name}: format version {version}; this broker reads 1")


def _decode(stored: bytes, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CallerError) as error:
        raise CorruptMetadataError(f"{name} cannot be read: {error}; restore the file") from error
