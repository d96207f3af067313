"""Builds the images and writes them as archives that `docker load` reads."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

IMAGES = ("broker", "operator", "spark")
ENGINES = ("docker", "podman")
ANSWER_S_MAX = 60.0


def engine_of(variables: Mapping[str, str]) -> list[str] | None:
    """Return the command of an engine that answers: $DOCKER if it is set; None: none does."""
    named = variables.get("DOCKER")
    candidates = [shlex.split(named)] if named else [[name] for name in ENGINES]
    return next((command for command in candidates if _answers(command)), None)


def build(engine: Sequence[str], tree: Path, target: Path, *, version: str, revision: str) -> None:
    """Build each image of `tree` and save it as `target`/tailrace-IMAGE-VERSION.tar.

    CalledProcessError: the engine could not; it has printed why.
    """
    variables = os.environ | {"DOCKER_BUILDKIT": "1"}  # an older Docker needs to be asked for it
    for image in IMAGES:
        name = f"tailrace/{image}:{version}"
        labels = [f"--build-arg=VERSION={version}", f"--build-arg=REVISION={revision}"]
        recipe = f"--file=Dockerfile.{image}"
        subprocess.run(
            [*engine, "build", recipe, f"--tag={name}", *labels, "."],
            cwd=tree,
            env=variables,
            check=True,
        )
        archive = target / f"tailrace-{image}-{version}.tar"
        subprocess.run([*engine, "save", f"--output={archive}", name], check=True)


def _answers(command: Sequence[str]) -> bool:
    """Whether there is such a command and its engine runs."""
    if not shutil.which(command[0]):
        return False
    try:
        done = subprocess.run(
            [*command, "version"], capture_output=True, timeout=ANSWER_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
