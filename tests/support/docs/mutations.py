"""The tables of docs/simulation.md: rule, check, mutations, and a seed that finds each."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs" / "simulation.md"
COLUMNS = ("rule", "check", "mutation", "seed")


def seeds_in_the_docs(section: str | None = None) -> dict[str, str]:
    """By mutation, as the tables below this heading name them; None: as all tables do."""
    contents = DOCS.read_text(encoding="utf-8")
    if section is not None:
        contents = contents.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in contents.splitlines()]
    return {
        name: seed.strip()
        for row in rows
        if len(row) == len(COLUMNS)
        for name, seed in zip(re.findall(r"`(\w+)`", row[2]), row[3].split(","), strict=False)
    }
