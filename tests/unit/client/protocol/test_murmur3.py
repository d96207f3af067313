"""Keys get the tokens that brokers give them, with and without the package `mmh3`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.murmur3 import fastest, plain_token, token

VECTORS = json.loads((Path(__file__).parents[3] / "golden" / "ring_keys.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["token"])
@pytest.mark.timeout(20)  # one key has a MiB
def test_a_golden_key_has_its_token(vector: dict[str, Any]) -> None:
    once = vector["text"].encode() if "text" in vector else bytes.fromhex(vector["hex"])
    key = once * int(vector.get("times", 1))

    assert token(key) == plain_token(key) == int(vector["token"])


@given(st.binary(max_size=100))
def test_both_ways_agree_on_any_key(key: bytes) -> None:
    assert plain_token(key) == token(key)


def test_without_the_package_tokens_are_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastest() is not plain_token
    monkeypatch.setitem(sys.modules, "mmh3", None)

    assert fastest() is plain_token
