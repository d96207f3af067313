"""Which topics a command line names: names as they are, and patterns as a shell has them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tailrace.cli.lib.parser import shown
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.sync import Client

_PATTERN_CHARACTERS = frozenset("*?[")


def is_pattern(word: str) -> bool:
    """No topic is called so."""
    return not _PATTERN_CHARACTERS.isdisjoint(word)


def wanted_topics(client: "Client", words: Sequence[str]) -> list[str]:
    """Each topic once, in the order in which they are named; of a pattern those that exist now.

    TailraceError: a pattern that matches none.
    """
    existing = [topic.name for topic in client.topics()] if any(map(is_pattern, words)) else []
    found: dict[str, None] = {}
    for word in words:
        matching = [word]
        if is_pattern(word):
            matching = [name for name in existing if fnmatchcase(name, word)]
        if not matching:
            raise TailraceError(
                f"no topic matches {shown(word)}. Those that exist: tailrace topic list"
            )
        found |= dict.fromkeys(matching)
    return list(found)
