"""`make mutation`: a random sample of mutations, each against the tests that should notice it.

The tests of a mutation, until one step fails: the unit tests that run its line, those of its
folder first (measured once, before the first mutation); its simulators; the integration tests that
name the file. A mutation that no step notices has survived: it is printed, and makes the command
fail unless `PATH_OF_KNOWN` lists it. One that a time limit or a signal ended is counted apart: no
test said what is wrong.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from hashlib import sha256
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from coverage import CoverageData

from tools.mutation.mutations import Mutation, mutations_of

ROOT = Path(__file__).parents[2]
BROKER = Path("broker/tailrace_broker")
FOLDERS = [BROKER / "core", BROKER / "codec", BROKER / "storage"]
COPIED = [
    *("broker", "client", "operator", "crds", "helm", "docker"),
    *("tests", "tools", "examples", "benchmarks", "docs", ".ci", ".github"),
]
PATH_OF_KNOWN = Path(__file__).parent / "survivors.txt"
# A mutation may have made a loop endless.
STEP_SECONDS_MAX = 900
# Of each simulator: a scenario of a ring takes a third of a second, one of a broker some seconds.
SEEDS, SEEDS_OF_A_RING = "5", "40"
NOT_FOR_STEPS = {"FILES", "FIRST", "JOBS", "MUTATIONS", "PYTHONDONTWRITEBYTECODE", "SEED"}
# What pytest-timeout writes.
TIME_LIMIT = b"Timeout (>"
UNIT = Path("tests/unit/broker")
# Of a unit test, as an endless loop must end; not the usual limit, which a busy machine exceeds.
PYTEST = [
    *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"),
    *("-o", "timeout=10", "--hypothesis-profile=unshrunk"),
]


class Ending(Enum):
    """How a step ended, or a mutation."""

    PASSED = "SURVIVED"
    FAILED = "noticed"
    TIMED_OUT = "timed out"
    KILLED = "ended by a signal"


class Outcome(NamedTuple):
    """`step`: the tests that did not pass; None: all passed."""

    mutation: Mutation
    ending: Ending
    step: str | None

    @property
    def verdict(self) -> str:
        """In a line of the output."""
        if self.ending is Ending.FAILED and self.step is not None:
            return self.step
        return self.ending.value if self.step is None else f"{self.ending.value}: {self.step}"


def main() -> int:
    """Return the exit status."""
    first = int(os.environ.get("FIRST", "0"))
    sample = _sample(
        first,
        int(os.environ.get("MUTATIONS", "20")),
        int(os.environ.get("SEED", "1")),
        os.environ.get("FILES", ""),
    )
    known = set(PATH_OF_KNOWN.read_text().splitlines())
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tailrace-mutation-") as name:
        for number, outcome in enumerate(_outcomes(sample, Path(name)), first):
            print(f"{number} {outcome.mutation}  [{outcome.verdict}]", flush=True)
            outcomes.append(outcome)
    print(summary(outcomes))
    survivors = [each.mutation.name_with_line for each in outcomes if each.step is None]
    new = [survivor for survivor in survivors if survivor not in known]
    for name in new:
        print(f"survived: {name}")
    return 1 if new else 0


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many were noticed by a test, and how many ended otherwise."""
    counts = Counter(outcome.ending for outcome in outcomes)
    noticed = f"{counts[Ending.FAILED]} of {len(outcomes)} noticed"
    share = counts[Ending.FAILED] / max(len(outcomes), 1)
    others = (Ending.TIMED_OUT, Ending.KILLED)
    return ", ".join(
        [f"{noticed} ({share:.1%})", *(f"{counts[each]} {each.value}" for each in others)]
    )


def _sample(first: int, size: int, seed: int, part: str) -> list[Mutation]:
    """Draw from all mutations of the files whose path contains `part`, without the `first` ones.

    The order depends on each mutation alone, so that a changed file moves none but its own.
    """
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    paths = [path for path in paths if part in str(path.relative_to(ROOT))]
    everything: dict[bytes, Mutation] = {}
    for path in paths:
        for mutation in mutations_of(str(path.relative_to(ROOT)), path.read_bytes()):
            ranks = (_rank(f"{seed} {mutation.name} {number}") for number in count())
            everything[next(rank for rank in ranks if rank not in everything)] = mutation
    print(f"{len(everything)} mutations in {len(paths)} files; {size} from {first} of seed {seed}")
    return [mutation for _, mutation in sorted(everything.items())][first : first + size]


def _rank(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _outcomes(sample: list[Mutation], directory: Path) -> Iterator[Outcome]:
    """In the order of the sample; each worker has a tree of its own."""
    worker_count = int(os.environ.get("JOBS", str(os.cpu_count() or 1)))
    all_trees = [_copy_tree(directory / str(index)) for index in range(worker_count)]
    tests_of = _measure(all_trees[0])
    trees: SimpleQueue[Path] = SimpleQueue()
    for tree in all_trees:
        trees.put(tree)

    def run(mutation: Mutation) -> Outcome:
        tree = trees.get()
        try:
            return _try(mutation, tests_of.get((mutation.path, mutation.line), []), tree)
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


def _measure(tree: Path) -> dict[tuple[str, int], list[str]]:
    """The unit tests that run each line; none of a line that only an import runs."""
    command = ["-m", "coverage", "run", "--rcfile=/dev/null", f"--source={BROKER}"]
    command += [*PYTEST, "-o", "timeout=120", "-p", "tools.mutation.contexts", str(UNIT)]
    assert _run(command, tree) is Ending.PASSED, "unit tests fail without a mutation"
    data = CoverageData(str(tree / ".coverage"))
    data.read()
    tests_of = {}
    for path in data.measured_files():
        for line, tests in data.contexts_by_lineno(path).items():
            tests_of[str(Path(path).relative_to(tree)), line] = sorted(filter(None, tests))
    return tests_of


def _try(mutation: Mutation, tests: list[str], tree: Path) -> Outcome:
    path = tree / mutation.path
    source = path.read_bytes()
    _write(path, mutation.apply(source))
    try:
        for command in _steps(Path(mutation.path), tests, tree):
            ending = _run(command, tree)
            if ending is not Ending.PASSED:
                step = next(part for part in command if part.startswith("tests"))
                return Outcome(mutation, ending, step)
    finally:
        _write(path, source)
    return Outcome(mutation, Ending.PASSED, None)


def _write(path: Path, source: bytes) -> None:
    """Each time with another time of change, whose seconds are all that bytecode is compared by."""
    modified_s = int(path.stat().st_mtime) + 1
    path.write_bytes(source)
    os.utime(path, (modified_s, modified_s))


def _steps(path: Path, tests: list[str], tree: Path) -> Iterator[list[str]]:
    inner = path.relative_to(BROKER)
    mirror = str(UNIT / inner.parent)
    if tests:
        near = [test for test in tests if test.startswith(mirror)]
        yield [*PYTEST, *near, *(test for test in tests if not test.startswith(mirror))]
    else:
        yield [*PYTEST, mirror]
        yield [*PYTEST, "--ignore", mirror, str(UNIT)]
    yield from _simulators(inner)
    names = (path.name, ".".join(path.with_suffix("").parts[1:]))
    naming = [
        str(test.relative_to(tree))
        for test in sorted((tree / "tests/integration").rglob("test_*.py"))
        if any(name in test.read_text() for name in names)
    ]
    if naming:
        yield [*PYTEST, *naming]


def _simulators(inner: Path) -> Iterator[list[str]]:
    match inner.parts[:2]:
        case ("core", "node" | "raft" | "replication" | "ring"):
            yield ["-m", "tests.simulation.ring"]
        case ("core", "groups"):
            return
        case _:
            yield [*PYTEST, "tests/simulation/test_crashes.py", "tests/simulation/test_damage.py"]
            yield [*PYTEST, "tests/simulation/cuts/test_cuts.py"]


def environment_of(command: list[str], tree: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a step; those that choose mutations would choose its scenarios as well."""
    python_path = os.pathsep.join(str(tree / name) for name in ("broker", "client", "operator"))
    seeds = SEEDS_OF_A_RING if "tests.simulation.ring" in command else SEEDS
    kept = {name: value for name, value in variables.items() if name not in NOT_FOR_STEPS}
    return {**kept, "PYTHONPATH": python_path, "CI": "true", "SEEDS": seeds}


def _run(command: list[str], tree: Path) -> Ending:
    with tempfile.TemporaryFile() as output:  # a pipe ends only with the last process it starts
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=tree,
                env=environment_of(command, tree, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=STEP_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ending.TIMED_OUT
        output.seek(0)
        return ending_of(done.returncode, output.read())


def ending_of(status: int, output: bytes) -> Ending:
    """Return how a command ended whose output may show a time limit of pytest's."""
    if status < 0:
        return Ending.KILLED
    if status and TIME_LIMIT in output:
        return Ending.TIMED_OUT
    return Ending.FAILED if status else Ending.PASSED


if __name__ == "__main__":
    sys.exit(main())
