"""Shuffled batches: a Gaussian release for each epoch, for members that are put to nothing; refused for all others."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import dpspec
from dpspec.accounting import gaussian
from dpspec.contract import Phase
from dpspec.engine.preparing.prepare import check
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec_group import theory

SPEC = """\
dpspec: 1
name: shuffled
mechanism:
  kind: group
  noise_multiplier: 2.0
  clip_norm: 1.0
  sampling: {scheme: shuffled, batch_size: 30}
  steps: 9
data: {kind: declared, records: 100, features: 4, classes: 2}
threat_model: {adjacency: zero-out, group_size: [1, 2]}
claims:
  - {id: one, kind: approx-dp, epsilon: 5.0, delta: 1e-5, min_records: 100}
  - {id: this, kind: approx-dp, epsilon: 5.0, delta: 1e-5, over: this}
  - {id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, over: this}
  - {id: two, kind: approx-dp, epsilon: 15.0, delta: 1e-5, group_size: 2, over: this}
  - {id: all, kind: approx-dp, epsilon: 5.0, delta: 1e-5}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "shuffled.yaml"
    path.write_text(text)
    return path


def messages(tmp_path: Path, text: str) -> list[str]:
    loaded = load_specs([written(tmp_path, text)], load_catalog())
    assert loaded.ok, loaded.diagnostics
    return [d.message for spec in loaded.specs for d in check(spec, load_catalog()) if d.severity == "error"]


def test_epochs_compose_and_nothing_refutes(tmp_path: Path) -> None:
    (audit,) = dpspec.run(written(tmp_path, SPEC)).audits
    verdicts = {verdict.claim: verdict for verdict in audit.verdicts}
    assert {name: verdict.verdict for name, verdict in verdicts.items()} == {
        "one": "proved",
        "this": "proved",
        "low": "open",
        "two": "proved",
        "all": "supported",
    }
    # nine steps of batches of 30 of 100 records begin three epochs
    exact = float(gaussian.epsilon(1e-5, math.sqrt(3.0) / 2.0))
    assert verdicts["one"].upper == pytest.approx(exact, rel=1e-9)
    assert not [finding for finding in audit.findings if finding.bound == "lower"]


def test_who_comes_or_goes_and_attacks_are_refused(tmp_path: Path) -> None:
    assert messages(tmp_path, SPEC) == []
    assert any("shuffled batches" in m for m in messages(tmp_path, SPEC.replace("adjacency: zero-out, ", "")))
    one = SPEC.replace("epsilon: 0.1, delta: 1e-5,", "epsilon: 0.1, delta: 1e-5, adjacency: add-remove,")
    assert any("shuffled batches" in m for m in messages(tmp_path, one))
    attacked = "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 40}}\n"
    assert any("shuffled batches" in m for m in messages(tmp_path, SPEC + attacked))


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.0, 1.0), (0.5, 1.0), (1.0, 0.7)])
def test_no_order_leaks_more(epsilon: float, sigma: float) -> None:
    """Two batches of two of four records, every order: delta by summing over the plane, whatever the others are."""
    phase = Phase(
        {"steps": 2, "clip_norm": 1.0, "noise_multiplier": sigma, "sampling": {"scheme": "shuffled", "batch_size": 2}}
    )
    x = np.linspace(-9.0, 9.0, 361)
    cell = (x[1] - x[0]) ** 2

    def density(values: tuple[float, ...]) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for order in itertools.permutations(range(4)):
            sums = [sum(values[i] for i in order[:2]), sum(values[i] for i in order[2:])]
            total += np.outer(norm.pdf(x, sums[0], sigma), norm.pdf(x, sums[1], sigma)) / 24.0
        return total

    for k, others in ((1, (0.0, 0.0, 0.0)), (1, (-1.0, 1.0, 0.3)), (2, (0.0, 0.0)), (2, (1.0, -0.5))):
        pair, count = theory.composed(phase, k, 4)
        assert count == 1
        most = math.exp(pair.log_delta_bounds(epsilon, "present-first")[1])  # type: ignore[index]
        present, absent = density((*[1.0] * k, *others)), density((*[0.0] * k, *others))
        for one, other in ((present, absent), (absent, present)):
            assert float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * cell) <= most + 1e-6
