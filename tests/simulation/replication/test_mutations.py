"""Mutations of the replication machines and their commands, one at a time: the walks find each."""

import pytest

from tests.simulation.replication.mutations import MUTATIONS, SEEDS_MAX, Mutation, find


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_mutation_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)

    assert find([MUTATIONS[mutation], *range(SEEDS_MAX)]) is not None
