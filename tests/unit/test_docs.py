"""What the documents say, checked against the code."""

import re
from pathlib import Path

from tailrace_broker.app.settings import Settings

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_operations_lists_every_setting() -> None:
    listed = re.findall(r"^\| `TAILRACE_([A-Z_]+)`", OPERATIONS.read_text(), re.MULTILINE)

    assert sorted(name.lower() for name in listed) == sorted(Settings.model_fields)
