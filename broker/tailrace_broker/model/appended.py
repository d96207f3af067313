"""How an append tells what became of it; doors and storage agree on it here."""

from typing import Protocol

from tailrace_broker.model.errors import TailraceError


class Appended(Protocol):
    """Called once, on the event loop: the offset of the request's first record, or why not."""

    def __call__(
        self, offset: int, error: TailraceError | None, /, *, is_duplicate: bool = False
    ) -> None:
        """`is_duplicate`: these records were stored before, by the same request of a producer."""
