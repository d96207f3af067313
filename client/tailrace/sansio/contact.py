"""Sans-IO: the broker that is asked for what any broker of a ring can answer.

It is the one that was given, until it cannot be reached; then the next that is known, and so on.
"""

from collections.abc import Iterable


class Contact:
    """`given`: the URL that was given; `url`: whom to ask now."""

    def __init__(self, url: str) -> None:
        self.given = self.url = url
        self._urls = [url]

    def beginning_at(self, url: str) -> "Contact":
        """Another one with the same brokers; `url` is asked first."""
        contact = Contact(url)
        contact.learn(self._urls)
        return contact

    def learn(self, urls: Iterable[str]) -> None:
        """These are brokers of the ring too."""
        self._urls += sorted({*urls}.difference(self._urls))

    def turn_from(self, url: str) -> None:
        """It cannot be reached."""
        if url == self.url:
            self.url = self._urls[(self._urls.index(url) + 1) % len(self._urls)]
