"""What is printed of topics, page by page."""

from typing import NamedTuple

Key = tuple[str, int]  # topic and partition


class Page(NamedTuple):
    """Some records of a topic, as the broker writes them."""

    topic: str
    lines: bytes
