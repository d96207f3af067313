"""Commands that a text names as the next step: they go to the same broker."""

import re
import shlex

# The first words of verbs that have --url.
_VERBS = "bench|consume|doctor|group|metadata|produce|ring|status|topic"
_COMMAND = re.compile(rf"\btailrace (?=(?:{_VERBS})\b)(?!.*--(?:url|help)\b)")


def with_url(text: str, url: str | None) -> str:
    """Put the --url that was given into each command of a text; None: none was."""
    if url is None:
        return text
    option = f"--url {shlex.quote(url)}"
    return _COMMAND.sub(lambda _: f"tailrace {option} ", text)
