"""The operator's settings, and that their page describes each."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from tailrace_operator.app.metrics import Metrics
from tailrace_operator.app.settings import Settings

PAGE = Path("docs/operator.md")


def test_each_setting_is_on_the_page_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `TAILRACE_OPERATOR_(\w+)` \| (.+?) \|", PAGE.read_text(), re.M))
    assert list(rows) == [name.upper() for name in Settings.model_fields]
    for name, field in Settings.model_fields.items():
        if name not in ("identity", "broker_image", "namespaces"):
            assert rows[name.upper()] == f"`{field.default}`"


def test_each_metric_is_on_the_page() -> None:
    text = PAGE.read_text()
    for each in Metrics().registry.collect():
        assert f"`{each.name}" in text


def test_a_brokers_address_is_made_of_the_pattern() -> None:
    address = Settings().broker_address("ns", "events", 2)
    assert address == "http://events-2.events-brokers.ns.svc:9250"


@pytest.mark.parametrize(
    ("pattern", "words"), [("http://a:1", "has no {ordinal}"), ("http://{a}{ordinal}", "places")]
)
def test_a_pattern_that_fits_no_ring_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(broker_url=pattern)


def test_namespaces_are_separated_by_commas() -> None:
    assert Settings(namespaces="a, b,").namespace_names == ("a", "b")
    assert Settings().namespace_names == ()
