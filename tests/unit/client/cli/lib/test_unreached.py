"""What is said of a broker that does not answer."""

from pathlib import Path

import pytest

from tailrace.cli.lib.unreached import with_ring_remedy
from tailrace.errors import ConnectionFailedError

GIVEN, OTHER = "http://127.0.0.1:9250", "http://127.0.0.1:9260"


def test_of_another_broker_than_the_one_given_it_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, other = (ConnectionFailedError(url, "refused") for url in (GIVEN, OTHER))
    before = str(own)

    assert str(with_ring_remedy(own, GIVEN)) == before
    assert str(with_ring_remedy(other, GIVEN)) == (
        f"a broker of the ring does not answer at {OTHER} (refused). "
        "See which ones are up: tailrace ring status"
    )
