"""Configuration from the environment, prefix `TAILRACE_`; read once, in `__main__`."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tailrace_broker.net.produce import PAYLOAD_BYTES_MAX

MEBIBYTE = 1024 * 1024


class Settings(BaseSettings):
    """Every field: unit, default and why."""

    # An empty variable counts as none: an empty path would be the present directory.
    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    data_dir: Path
    """Where this broker keeps its data; no default, so that nothing is stored by accident."""

    host: str = "127.0.0.1"
    """Address of the doors; loopback, since there is no access control yet."""

    port: int = Field(default=9250, ge=1, le=65532)
    """Base port: public +0, produce +1, read +2, metrics +3."""

    auto_create_topics: bool = True
    """Whether the first produce to a topic creates it: a newcomer's first curl works."""

    max_request_bytes: int = Field(default=16 * MEBIBYTE, ge=1024, le=PAYLOAD_BYTES_MAX // 2)
    """Bound of one produce body; larger bodies gain nothing in speed."""

    request_seconds: float = Field(default=30, gt=0)
    """A whole request arrives in this time, else 408: what it holds is needed by others."""

    produce_memory_bytes: int = Field(default=64 * MEBIBYTE, ge=MEBIBYTE)
    """Bodies in flight, all connections together; over it producers get 429."""

    segment_bytes: int = Field(default=256 * MEBIBYTE, ge=MEBIBYTE, le=1024 * MEBIBYTE)
    """A segment is finished by the write that passes this; 32-bit positions bound it."""

    cache_bytes: int = Field(default=32 * MEBIBYTE, ge=0)
    """Recent batches kept in memory for readers near the end, all partitions together."""

    io_buffer_bytes: int = Field(default=256 * MEBIBYTE, ge=4 * PAYLOAD_BYTES_MAX)
    """Bound of aligned buffers lent to the I/O threads; address space until it is used."""

    io_threads: int = Field(default=2, ge=1, le=64)
    """Threads for disk calls and large compressions; more only take the interpreter in turns."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""

    @model_validator(mode="after")
    def check_relations(self) -> "Settings":
        """One body at least must fit into the produce memory."""
        if self.produce_memory_bytes < self.max_request_bytes:
            raise ValueError("TAILRACE_PRODUCE_MEMORY_BYTES is below TAILRACE_MAX_REQUEST_BYTES")
        return self
