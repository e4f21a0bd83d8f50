"""The specs of docs/how-to/reconstruction.md claim the bound, and what the attack refutes is two thirds of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec_rero.options import declared_steps, read_candidates
from dpspec_rero.theory import Leakage

FOLDER = Path(__file__).parents[3] / "specs" / "rero"


@pytest.mark.parametrize("name", ["levels-16", "levels-256", "mnist-16", "mnist-256"])
def test_two_thirds_of_the_bound_at_three_levels_of_noise(name: str) -> None:
    loaded = load_specs([FOLDER / f"{name}.yaml"], load_catalog())
    assert loaded.ok, loaded.diagnostics
    assert len({spec.mechanism["noise_multiplier"] for spec in loaded.specs}) == 3
    for spec in loaded.specs:
        chosen = read_candidates(spec.threat_model.options)
        assert chosen is not None
        assert str(chosen.count) == name.rpartition("-")[2]
        claims = {claim.id: claim for claim in spec.claims}
        (gamma,) = Leakage(declared_steps(spec.phases)).gammas([chosen.kappa])
        assert claims["bound"]["kappa"] == claims["two-thirds"]["kappa"] == chosen.kappa
        assert gamma.upper <= claims["bound"]["gamma"] < gamma.upper + 2e-3
        assert gamma.upper / 1.5 <= claims["two-thirds"]["gamma"] < gamma.upper / 1.5 + 2e-3
