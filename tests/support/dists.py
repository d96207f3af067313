"""`make dist` as a process, into a folder of the test."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_S_MAX = 60.0


def run_dist(
    target: Path, *, root: Path = ROOT, images: str = "0", engine: str = ""
) -> subprocess.CompletedProcess[str]:
    """What `make dist IMAGES=… DOCKER=…` runs."""
    return subprocess.run(
        [sys.executable, "-m", "tools.dist", "--root", str(root), "--target", str(target)],
        cwd=ROOT,
        env=os.environ | {"IMAGES": images, "DOCKER": engine},
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )


def tracked(*folders: str) -> set[str]:
    """The paths below the root that git has of these folders, where they are still there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return {name for name in listed if name and (ROOT / name).exists()}
