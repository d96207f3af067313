"""Inputs that fuzzing once found something with: handled as declared ever since. And the fuzzer."""

import random
from contextlib import nullcontext
from pathlib import Path

import pytest

from tailrace_broker.codec.batch import verify_batch
from tailrace_broker.codec.segment import decode_index, read_pad
from tests.fuzz import __main__ as fuzz
from tests.fuzz.__main__ import CORPUS, Run, corpus_of
from tests.fuzz.mutations import mutate, put_checksums_right
from tests.fuzz.seeds import BATCHES, golden
from tests.fuzz.targets import TARGETS, Target

FOUND = [(target, path) for target in TARGETS for path in corpus_of(target.name)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_good_inputs_are_handled(target: Target) -> None:
    with target.opened() as check:
        for data in target.seeds:
            check(data)


@pytest.mark.parametrize(
    ("target", "path"), FOUND, ids=[f"{target.name}-{path.stem}" for target, path in FOUND]
)
def test_what_was_found_is_handled(target: Target, path: Path) -> None:
    with target.opened() as check:
        check(path.read_bytes())


def test_every_folder_of_the_corpus_is_of_a_target() -> None:
    assert {path.name for path in CORPUS.glob("*")} <= {target.name for target in TARGETS}


def test_what_is_raised_but_not_declared_is_kept_once_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "CORPUS", tmp_path)

    def check(data: bytes) -> None:
        raise ZeroDivisionError

    target = Target("broken", [b"good"], lambda: nullcontext(check))
    run = Run(target, check, seed="1")
    for data in (b"1", b"2"):
        run.take(data)

    assert [path.read_bytes() for path in corpus_of("broken")] == [b"1"]
    assert (run.count, len(run.found)) == (2, 1)


def test_the_same_seed_gives_the_same_inputs() -> None:
    first, second = (random.Random(7), random.Random(7))

    assert [mutate(first, BATCHES) for _ in range(20)] == [
        mutate(second, BATCHES) for _ in range(20)
    ]


def test_checksums_are_corrected() -> None:
    batch, index = bytearray(BATCHES[1]), bytearray(golden("segment.idx")[0])
    pad = bytearray(b"TRLP") + (64).to_bytes(4, "little") + bytes(56)
    batch[200] ^= 1
    index[20] ^= 1
    for damaged in (batch, index, pad):
        put_checksums_right(damaged)

    assert verify_batch(memoryview(batch)).record_count == 3
    assert decode_index(bytes(index)).entries
    assert read_pad(memoryview(pad)) == 64
