"""Shuffled batches: a Gaussian release for each epoch, for members that are put to nothing; of all others no bound, so
that they are refused, or attacked."""

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


def test_who_comes_or_goes_is_refused_and_so_is_an_attack_on_who_stays(tmp_path: Path) -> None:
    assert messages(tmp_path, SPEC) == []
    assert any("shuffled batches" in m for m in messages(tmp_path, SPEC.replace("adjacency: zero-out, ", "")))
    one = SPEC.replace("epsilon: 0.1, delta: 1e-5,", "epsilon: 0.1, delta: 1e-5, adjacency: add-remove,")
    assert any("shuffled batches" in m for m in messages(tmp_path, one))
    attacked = "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 40}}\n"
    assert any("zero-out" in m for m in messages(tmp_path, SPEC + attacked))


ATTACKED = """\
dpspec: 1
name: attacked
mechanism:
  kind: group
  noise_multiplier: 0.3
  clip_norm: 1.0
  sampling: {scheme: shuffled, batch_size: 30}
  steps: 23
data: {kind: synthetic, pattern: blobs, records: 100, features: 20, classes: 2}
model: {kind: mlp, hidden: [16]}
training: {backend: native, learning_rate: 0.5}
threat_model: {group_size: [1, 2]}
claims:
  - {id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, expect: refuted}
  - {id: high, kind: approx-dp, epsilon: 400, delta: 1e-5, expect: open}
  - {id: two, kind: approx-dp, epsilon: 400, delta: 1e-5, group_size: 2, over: this, expect: open}
  - {id: mu, kind: gdp, mu: 100, expect: open}
  - {id: rate, kind: membership, tpr: 1, fpr: 0.1, expect: open}
  - {id: advantage, kind: membership, advantage: 1, expect: open}
audit:
  method: one-run
  canary: {space: gradient, kind: orthogonal, count: 80}
  seed: 3
"""


def test_no_theorem_and_an_attack_that_refutes(tmp_path: Path) -> None:
    """However much is claimed nothing is proved, and the reason says why; the run is held against its declaration."""
    assert messages(tmp_path, ATTACKED) == []
    (audit,) = dpspec.run(written(tmp_path, ATTACKED)).audits
    verdicts = {verdict.claim: verdict for verdict in audit.verdicts}
    assert all(verdict.expected for verdict in verdicts.values()), verdicts
    for name in ("high", "two", "mu", "rate", "advantage"):
        assert "no theorem covers shuffled batches under add-remove adjacency" in verdicts[name].reason
        assert verdicts[name].upper is None
    bounds = [finding for finding in audit.findings if finding.bound == "upper"]
    assert bounds
    assert all(math.isinf(finding.value) for finding in bounds)
    assert not [f for f in audit.findings if f.bound == "lower" and f.scope.pipeline == "declared"]
    assert not [f for f in audit.findings if "rules out noise" in f.method]
    assert audit.conformance.status == "no-deviation-found"
    notes = {check.note for check in audit.checks if check.assumption == "sampling"}
    assert {"batch size, phase 1", "batches of each epoch, phase 1", "batches of different epochs, phase 1"} <= notes
    left_out = [check for check in audit.checks if "depends on the epoch's other batches" in check.note]
    assert {check.assumption for check in left_out} == {"update", "independent-noise"}


def test_too_large_batches_are_refused(tmp_path: Path) -> None:
    (message,) = messages(tmp_path, ATTACKED.replace("batch_size: 30", "batch_size: 101"))
    assert message == "batch_size 101 exceeds the 100 records"


def test_much_noise_hides_who_is_there(tmp_path: Path) -> None:
    """Where nothing leaks to speak of, nothing is refuted: whatever batches coins are drawn into."""
    quiet = ATTACKED.replace("multiplier: 0.3", "multiplier: 300").replace("expect: refuted", "expect: open")
    for seed in (1, 2, 3):
        (audit,) = dpspec.run(written(tmp_path, quiet.replace("seed: 3", f"seed: {seed}"))).audits
        assert [v.verdict for v in audit.verdicts] == ["open"] * 6
        assert audit.conformance.status == "no-deviation-found"


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
        ((pair, count),) = theory.composed([phase], k, 4)
        assert count == 1
        most = math.exp(pair.log_delta_bounds(epsilon, "present-first")[1])  # type: ignore[index]
        present, absent = density((*[1.0] * k, *others)), density((*[0.0] * k, *others))
        for one, other in ((present, absent), (absent, present)):
            assert float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * cell) <= most + 1e-6
