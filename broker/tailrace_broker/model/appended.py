"""How an append tells what became of it; doors and storage agree on it here."""

from collections.abc import Callable

from tailrace_broker.model.errors import TailraceError

# Called once, on the event loop: the offset of the request's first record, or why there is none.
Appended = Callable[[int, TailraceError | None], None]
