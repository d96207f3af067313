"""How kopf is asked to watch; that it does is in tests/integration/test_operator*."""

from collections.abc import Iterable
from itertools import islice

from tailrace_operator.app.handlers import _settings


def test_a_watch_that_is_refused_is_tried_for_ever() -> None:
    backoffs_s = _settings().networking.error_backoffs
    assert isinstance(backoffs_s, Iterable)
    for _ in range(2):  # each watch begins again
        first = list(islice(backoffs_s, 1000))
        assert len(first) == 1000
        assert first[0] == 1
        assert max(first) == 30
