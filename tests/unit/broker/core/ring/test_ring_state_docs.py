"""docs/ring-state.md names every command and every reason for which one is refused."""

import re
from pathlib import Path
from typing import get_args

import pytest

from tailrace_broker.core.ring import range_commands, registrations, step_commands, topic_commands
from tailrace_broker.model.commands import Command

PAGE = (Path(__file__).parents[5] / "docs" / "ring-state.md").read_text()
TAGS = [kind.__struct_config__.tag for kind in get_args(Command)]
REASONS = {
    reason
    for module in (range_commands, registrations, step_commands, topic_commands)
    for reason in re.findall(r'Refusal\(\s*"([^"]+)"', Path(str(module.__file__)).read_text())
}


@pytest.mark.parametrize("tag", TAGS)
def test_every_command_is_in_a_table(tag: str) -> None:
    assert f"\n| `{tag}` |" in PAGE


def test_every_reason_for_a_refusal_is_named_and_no_other() -> None:
    named = {
        each for row in re.findall(r"\n\| `.*", PAGE) for each in re.findall("`([a-z-]+)`", row)
    }

    assert len(REASONS) > 30
    assert named - {*TAGS} - {"fsync"} == REASONS
