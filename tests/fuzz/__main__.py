"""`python -m tests.fuzz SECONDS [TARGET …]`: mutated inputs for every target, by turns.

What is found is stored in the corpus, which `tests/unit/test_fuzz_corpus.py` replays for ever.
`SEED=…` in the environment repeats a run; without it each run has new inputs.
"""

import gc
import hashlib
import os
import random
import resource
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pyarrow as pa
import structlog

from tests.fuzz.mutations import mutate
from tests.fuzz.targets import TARGETS, Check, Target

CORPUS = Path(__file__).parent / "corpus"
SECONDS_DEFAULT = 60.0
# Of one input; on a busy machine.
INPUT_SECONDS_MAX = 10.0
TURN_SECONDS = 0.1
# Before memory is measured: caches and pools fill.
WARM_UP_SHARE = 0.4
GROWTH_BYTES_MAX = 10 * 1024 * 1024


class HungError(BaseException):
    """An input takes too long."""


def main(arguments: list[str]) -> int:
    """0 when nothing was found."""
    seconds = float(arguments[0]) if arguments else SECONDS_DEFAULT
    targets = [target for target in TARGETS if target.name in arguments[1:] or not arguments[1:]]
    seed = os.environ.get("SEED") or str(random.SystemRandom().getrandbits(32))
    print(f"seed {seed}, {seconds:g} s, targets: {', '.join(target.name for target in targets)}")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    signal.signal(signal.SIGALRM, _on_alarm)
    with ExitStack() as stack:
        runs = [
            Run(target, in_time(stack.enter_context(target.opened())), seed) for target in targets
        ]
        until_s = time.monotonic() + seconds
        _take_turns(runs, until_s - seconds * (1 - WARM_UP_SHARE))
        before_bytes = _resident_bytes()
        _take_turns(runs, until_s)
        growth_bytes = _resident_bytes() - before_bytes
    for run in runs:
        print(f"{run.target.name:14} {run.count:9} inputs, {len(run.found)} findings")
    print(f"memory grew by {growth_bytes / 2**20:.1f} MiB after the warm-up")
    return int(any(run.found for run in runs) or growth_bytes >= GROWTH_BYTES_MAX)


class Run:
    """The inputs of one target."""

    def __init__(self, target: Target, check: Check, seed: str) -> None:
        self.target = target
        self.count = 0
        self.found: set[tuple[str, int | None]] = set()
        self._check = check
        self._generator = random.Random(f"{seed} {target.name}")
        known = [path.read_bytes() for path in corpus_of(target.name)]
        self._seeds = [*target.seeds, *known]
        for data in known:  # what is still found there is not kept again
            self.take(data)

    def turn(self, until_s: float) -> None:
        """Inputs until then."""
        while time.monotonic() < until_s:
            self.take(mutate(self._generator, self._seeds))

    def take(self, data: bytes) -> None:
        """Keep the input when it is not handled as declared."""
        self.count += 1
        try:
            self._check(data)
        except (Exception, HungError) as error:  # noqa: BLE001  none is declared
            self._keep(data, error)

    def _keep(self, data: bytes, error: BaseException) -> None:
        """One input for each place that something is raised at."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        if (place.filename, place.lineno) not in self.found:
            self.found.add((place.filename, place.lineno))
            path = CORPUS / self.target.name / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"{path}:\n{''.join(traceback.format_exception(error))}")


def corpus_of(name: str) -> list[Path]:
    """What was found in a target before."""
    return sorted((CORPUS / name).glob("*.bin"))


def in_time(check: Check) -> Check:
    """Raises HungError when an input takes too long."""

    def check_in_time(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS_MAX)
        try:
            check(data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return check_in_time


def _take_turns(runs: list[Run], until_s: float) -> None:
    while (now_s := time.monotonic()) < until_s:
        for run in runs:
            now_s = time.monotonic()
            run.turn(min(until_s, now_s + TURN_SECONDS))


def _resident_bytes() -> int:
    """Of this process (proc(5)), Arrow's pool emptied; elsewhere its peak, which grows no less."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


def _on_alarm(_: int, __: FrameType | None) -> None:
    raise HungError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
