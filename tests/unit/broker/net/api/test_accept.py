"""`Accept` -> the content type of an answer (RFC 9110, 12.5.1)."""

import pytest

from tailrace_broker.model.errors import NotAcceptableError
from tailrace_broker.net.api.read import preferred_type

OFFERED = ("application/a", "application/b", "image/c")


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        ("", "application/a"),
        ("*/*", "application/a"),
        ("application/*", "application/a"),
        ("application/b", "application/b"),
        ("image/c, application/b", "application/b"),
        ("image/c;q=0.9, application/b;q=0.8", "image/c"),
        ("application/b;q=0.001", "application/b"),
        ("application/a;q=0, */*", "application/b"),
        ("application/a;q=0.1, */*;q=0.2", "application/b"),
        ("*/*;q=0.1, application/*;q=0.3, image/c;q=0.2", "application/a"),
        ("application/*;q=0, */*", "image/c"),
        ("text/html, application/xhtml+xml, */*;q=0.1", "application/a"),
        ("application/b ; version=1 ; q=0.5", "application/b"),
        ("application/a;q=2, application/b;q=0.1", "application/b"),
        ("application/a;q=nan, application/b;q=0.1", "application/b"),
        ("application/a;q=x, application/b;q=0.1", "application/b"),
        (",, application/b,", "application/b"),
    ],
)
def test_the_type_of_the_highest_quality_is_preferred(accept: str, preferred: str) -> None:
    """The most specific range counts for a type; of equals the first that is offered."""
    assert preferred_type(accept, OFFERED) == preferred


@pytest.mark.parametrize(
    "accept", ["text/html", "*/*;q=0", "application/a;q=0", "application", ",", "a/*", "*"]
)
def test_where_none_is_accepted_those_are_named(accept: str) -> None:
    with pytest.raises(NotAcceptableError) as refused:
        preferred_type(accept, OFFERED)

    assert refused.value.detail.endswith("is none of: application/a, application/b, image/c")
