"""docs/ring-state.md names every command and every reason for which one is refused."""

import re
from pathlib import Path
from typing import get_args

import pytest

from tailrace_broker.core.ring import (
    copies,
    range_commands,
    registrations,
    reslicing,
    sealed_retention,
    step_commands,
    topic_commands,
)
from tailrace_broker.model.commands import Command

PAGE = (Path(__file__).parents[5] / "docs" / "ring-state.md").read_text()
COMMANDS = PAGE[PAGE.index("## Brokers") : PAGE.index("## Invariants")]
# Durabilities, loss classes, and what else makes a ghost.
OTHER_WORDS = {"fsync", "written", "clean", "process", "power", "disk", "damage", "damaged"}
TAGS = [kind.__struct_config__.tag for kind in get_args(Command)]
MODULES = (
    copies,
    range_commands,
    registrations,
    reslicing,
    sealed_retention,
    step_commands,
    topic_commands,
)
REASONS = {
    reason
    for module in MODULES
    for reason in re.findall(r'Refusal\(\s*"([^"]+)"', Path(str(module.__file__)).read_text())
}


@pytest.mark.parametrize("tag", TAGS)
def test_every_command_has_a_paragraph(tag: str) -> None:
    assert f"\n**`{tag}`**: " in COMMANDS


def test_every_reason_for_a_refusal_is_named_and_no_other() -> None:
    named = set(re.findall("`([a-z-]+)`", COMMANDS))

    assert len(REASONS) > 30
    assert named - {*TAGS} - OTHER_WORDS == REASONS
