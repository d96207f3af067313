"""`make mutation`: a random sample of mutations, each against the tests that should notice it.

The tests of a file, until one step fails: the unit tests of its folder, of the folder above, of the
broker; its simulator; the integration tests that name the file. A mutation that no step
notices has survived: it is printed, and makes the command fail unless `PATH_OF_KNOWN` lists it.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tools.mutation.mutations import Mutation, mutations_of

ROOT = Path(__file__).parents[2]
BROKER = Path("broker/tailrace_broker")
FOLDERS = [BROKER / "core", BROKER / "codec", BROKER / "storage"]
COPIED = [
    *("broker", "client", "operator", "crds", "helm", "docker"),
    *("tests", "tools", "examples", "benchmarks", "docs", ".ci", ".github"),
]
PATH_OF_KNOWN = Path(__file__).parent / "survivors.txt"
# A loop that a mutation has made endless is noticed too.
STEP_SECONDS_MAX = 900
SEEDS = "20"


class Outcome(NamedTuple):
    """`noticed_by`: the command of the step that failed; None: all passed."""

    mutation: Mutation
    noticed_by: str | None


def main() -> int:
    """Return the exit status."""
    sample = _sample(
        int(os.environ.get("MUTATIONS", "20")),
        int(os.environ.get("SEED", "1")),
        os.environ.get("FILES", ""),
    )
    known = set(PATH_OF_KNOWN.read_text().splitlines())
    survivors = []
    with tempfile.TemporaryDirectory(prefix="tailrace-mutation-") as name:
        for number, outcome in enumerate(_outcomes(sample, Path(name)), 1):
            verdict = outcome.noticed_by or "SURVIVED"
            print(f"{number}/{len(sample)} {outcome.mutation}  [{verdict}]", flush=True)
            if outcome.noticed_by is None:
                survivors.append(outcome.mutation.name)
    noticed_count = len(sample) - len(survivors)
    print(f"{noticed_count} of {len(sample)} noticed ({noticed_count / len(sample):.1%})")
    new = [survivor for survivor in survivors if survivor not in known]
    for name in new:
        print(f"survived: {name}")
    return 1 if new else 0


def _sample(count: int, seed: int, part: str) -> list[Mutation]:
    """Draw from all mutations of the files whose path contains `part`."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    paths = [path for path in paths if part in str(path.relative_to(ROOT))]
    everything = [
        mutation
        for path in paths
        for mutation in mutations_of(str(path.relative_to(ROOT)), path.read_bytes())
    ]
    print(f"{len(everything)} mutations in {len(paths)} files; a sample of {count}, seed {seed}")
    return random.Random(seed).sample(everything, min(count, len(everything)))


def _outcomes(sample: list[Mutation], directory: Path) -> Iterator[Outcome]:
    """In the order of the sample; each worker has a tree of its own."""
    trees: SimpleQueue[Path] = SimpleQueue()
    worker_count = int(os.environ.get("JOBS", str(os.cpu_count() or 1)))
    for index in range(worker_count):
        trees.put(_copy_tree(directory / str(index)))

    def run(mutation: Mutation) -> Outcome:
        tree = trees.get()
        try:
            return _try(mutation, tree)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(worker_count) as executor:
        yield from executor.map(run, sample)


def _copy_tree(tree: Path) -> Path:
    for folder in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    return tree


def _try(mutation: Mutation, tree: Path) -> Outcome:
    path = tree / mutation.path
    source = path.read_bytes()
    path.write_bytes(mutation.apply(source))
    try:
        for command in _steps(Path(mutation.path), tree):
            if not _passes(command, tree):
                return Outcome(mutation, " ".join(command[2:]))
    finally:
        path.write_bytes(source)
    return Outcome(mutation, None)


def _steps(path: Path, tree: Path) -> Iterator[list[str]]:
    inner = path.relative_to(BROKER)
    unit = Path("tests/unit/broker")
    mirror = unit / inner.parent
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]
    yield [*pytest, str(mirror)]
    if mirror.parent != unit:
        yield [*pytest, *_ignored(mirror), str(mirror.parent)]
        mirror = mirror.parent
    yield [*pytest, *_ignored(mirror), str(unit)]
    if inner.parts[:2] in {("core", "node"), ("core", "raft"), ("core", "ring")}:
        yield ["-m", "tests.simulation.ring"]
    else:
        yield [*pytest, "tests/simulation/test_crashes.py", "tests/simulation/test_damage.py"]
    names = (path.name, ".".join(path.with_suffix("").parts[1:]))
    naming = [
        str(test.relative_to(tree))
        for test in sorted((tree / "tests/integration").rglob("test_*.py"))
        if any(name in test.read_text() for name in names)
    ]
    if naming:
        yield [*pytest, *naming]


def _ignored(directory: Path) -> list[str]:
    return ["--ignore", str(directory)]


def _passes(command: list[str], tree: Path) -> bool:
    python_path = os.pathsep.join(str(tree / name) for name in ("broker", "client", "operator"))
    env = {**os.environ, "PYTHONPATH": python_path, "CI": "true", "SEEDS": SEEDS}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=STEP_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
