"""Proxy-crafted canaries: the greedy choice against determinants, and gradients against automatic differentiation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.specs import audited, diagnostics

from dpspec.contract import Facts, FrozenMap
from dpspec.contract.attacks import Asked
from dpspec.stats.attacks.curve_lines import gaussian_epsilon
from dpspec.training import crafted_canaries
from dpspec.training.crafted_canaries import proxy_crafted
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.providers import MOST_CRAFTED, proxy_crafted_limit

RNG = np.random.default_rng(3)
Y = RNG.integers(0, 3, 40)
X = (RNG.normal(size=(40, 2, 3)) + Y[:, None, None]).astype(np.float32)


def asked(count: int, seed: int = 0) -> Asked:
    facts = Facts(records=40, features=6, classes=3, digest=None)
    return Asked(count=count, seed=seed, facts=facts, options=FrozenMap(), x=X, y=Y)


def test_records_are_long_in_distinct_directions_with_valid_labels() -> None:
    canaries = proxy_crafted(asked(12))
    assert canaries.x.shape == (12, 2, 3)
    assert (canaries.x.dtype, canaries.y.dtype) == (X.dtype, Y.dtype)
    norms = np.linalg.norm(canaries.x.reshape(12, 6), axis=1)
    assert np.allclose(norms, 8.0 * np.linalg.norm(X.reshape(40, 6), axis=1).max(), rtol=1e-5)
    assert len(np.unique(np.column_stack([canaries.x.reshape(12, 6), canaries.y]), axis=0)) == 12
    assert set(canaries.y.tolist()) <= {0, 1, 2}


def test_gradient_factors_are_normalized_gradients_of_the_proxy() -> None:
    proxy = crafted_canaries._proxy(X.reshape(40, 6), Y, 3, np.random.default_rng(1))
    x, y = torch.from_numpy(X.reshape(40, 6)[:5]), torch.from_numpy(Y[:5])
    pairs = crafted_canaries._gradient_factors(proxy, x, y)
    kernel = sum(((a @ a.T) * (b @ b.T)).double() for a, b in pairs)
    model = FlatModel(proxy)
    rows = torch.cat(list(model.gradients(model.initial(), x, y))).double()
    rows = rows / rows.norm(dim=1, keepdim=True)
    assert torch.allclose(torch.as_tensor(kernel), rows @ rows.T, atol=1e-5)


def test_the_choice_is_the_greedy_maximum_of_the_determinant() -> None:
    vectors = torch.from_numpy(RNG.normal(size=(9, 4)).astype(np.float32))
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    # An outer product with a constant of one entry is the vector itself.
    chosen = crafted_canaries._greedy([[(vectors, torch.ones(9, 1))]], 5).tolist()
    kernel, expected = (vectors @ vectors.T).double().numpy(), chosen[:1]  # all first choices are equal
    while len(expected) < 5:
        others = [i for i in range(9) if i not in expected]
        sets = {i: [*expected, i] for i in others}
        values = {i: np.linalg.det(np.eye(len(s)) + kernel[np.ix_(s, s)] / 4.0) for i, s in sets.items()}
        expected.append(max(values, key=values.__getitem__))
    assert chosen == expected


def test_texts_and_very_many_canaries_are_refused() -> None:
    facts = Facts(records=40, features=6, classes=3, digest=None, vocabulary=9)
    assert proxy_crafted_limit(facts, FrozenMap())[0] == 0
    assert proxy_crafted_limit(asked(1).facts, FrozenMap())[0] == MOST_CRAFTED


SPEC = """\
dpspec: 1
name: crafted
mechanism: {kind: group, noise_multiplier: 0.5, clip_norm: 1.0, sampling: {scheme: full}, steps: 1}
data: {kind: synthetic, pattern: blobs, records: 60, features: 8, classes: 4}
model: {kind: mlp, hidden: [16]}
training: {backend: native, learning_rate: 2.0}
threat_model: {access: final-model}
claims:
  - {id: private, kind: approx-dp, epsilon: 12.0, delta: 1e-5}
audit:
  method: one-run
  canary: {space: input, kind: proxy-crafted, count: 120}
  score: path
  canary_free_run: false
  seed: 0
"""


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("proxy-crafted", f"count must be at most {MOST_CRAFTED}, got 6000: the greedy choice takes quadratic memory"),
        ("least-variance", "count must be at most 64, got 6000: directions of least variance"),
        ("blank", "count must be at most 4, got 6000: there is one blank record for each label"),
    ],
)
def test_more_canaries_than_a_kind_has_are_refused(kind: str, says: str, tmp_path: Path) -> None:
    changes = (f"audit.canary.kind={kind}", "audit.canary.count=6000")
    (refused,) = diagnostics(tmp_path, SPEC, *changes)
    assert refused.message.startswith(says)
    assert refused.path == ("audit", "canary", "count")


@pytest.mark.ci
def test_no_bound_exceeds_the_epsilon_of_one_gaussian_step(tmp_path: Path) -> None:
    """Each of six bounds at confidence 0.95; two or more above the truth have a probability below 0.04."""
    truth = gaussian_epsilon(2.0, 1e-5)
    bounds = []
    for seed in range(6):
        result = audited(tmp_path, SPEC, f"audit.seed={seed}")
        statistical = [finding for finding in result.findings if finding.rigor == "statistical"]
        bounds += [f.value for f in statistical if (f.quantity, f.bound) == ("epsilon", "lower")]
    assert len(bounds) == 6
    assert sum(bound > truth for bound in bounds) <= 1
    assert sorted(bounds)[3] > 0.1 * truth
