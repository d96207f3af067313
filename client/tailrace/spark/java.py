"""Finds the Java that Spark would start."""

import os
import re
import subprocess
from pathlib import Path

JAVA_MAJOR_MIN = 17
_ANSWER_S_MAX = 30.0


def java_version() -> str | None:
    """Of the Java in JAVA_HOME, else in PATH; None without one."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path("java")
    try:
        said = subprocess.run(  # noqa: S603  # the program that Spark runs next
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match_ = re.search(r'version "([^"]+)"', said.stderr)
    return match_[1] if match_ else None


def can_run_spark(version: str) -> bool:
    """Whether a version like 17.0.15 or 21-ea is new enough; before 9 they are called 1.x."""
    match_ = re.match(r"\d+", version)
    return match_ is not None and int(match_[0]) >= JAVA_MAJOR_MIN
