"""A private projection: its sensitivity, executed noise, composition and the baseline without pre-processing."""

import math
from pathlib import Path

import numpy as np
import pytest
from support import specs

from dpspec.contract.results import AuditResult
from dpspec_preprocessing import steps
from dpspec_preprocessing.attack import _scores_after_release
from dpspec_preprocessing.bounds import repaired_epsilon
from dpspec_preprocessing.engines import LinearEngine, NoiseTally
from dpspec_preprocessing.private import PrivateMechanism, repaired_divergence
from dpspec_preprocessing.sensitivity import read_step, second_moment_sensitivity

BASE = """\
dpspec: 1
name: audited
mechanism:
  kind: preprocessing
  pipeline: [{dp-pca: 2, eps_noise: 0.4}]
  private: {kind: gaussian, eps_noise: 0.3}
  clip_rows: true
data: {kind: synthetic, pattern: low-rank, records: 400, features: 4, rank: 2, seed: 4, split: {test: 200}}
threat_model: {adjacency: replace-one}
claims:
  - {id: one, kind: approx-dp, epsilon: 1e6, delta: 1e-5}
audit: {method: many-run, runs: 2, repeats: 12, seed: 3}
"""
GD = "mechanism.private={kind: dp-gd, eps_noise: 0.3, steps: 5, loss: logistic}"


def audited(tmp_path: Path, *overrides: str) -> AuditResult:
    return specs.audited(tmp_path, BASE, *overrides)


@pytest.mark.parametrize("radius", [1.0, 2.0])
def test_no_replaced_record_moves_the_second_moments_more(radius: float) -> None:
    """By random pairs in the ball, and by the eigenvalues of a a^T - b b^T; an orthogonal pair attains it."""
    random, limit = np.random.default_rng(0), second_moment_sensitivity(radius)
    a, b = random.normal(size=(2, 2000, 3))
    for rows in (a, b):
        rows *= radius * random.random((2000, 1)) ** 0.1 / np.linalg.norm(rows, axis=1, keepdims=True)
    difference = a[:, :, None] * a[:, None, :] - b[:, :, None] * b[:, None, :]
    norms = np.sqrt(np.square(np.linalg.eigvalsh(difference)).sum(axis=1))
    assert 0.95 * limit < norms.max() <= limit
    attained = np.diag([radius**2, -(radius**2), 0.0])
    assert np.linalg.norm(steps.moment_coordinates(attained)) == pytest.approx(limit, rel=1e-14)


@pytest.mark.ci
def test_the_released_matrix_is_gaussian_at_the_declared_mu() -> None:
    """Executed on two neighbours: equal noise in every direction, and means that differ by mu standard deviations."""
    step, random, runs = read_step({"dp-pca": 1, "eps_noise": 0.8}), np.random.default_rng(1), 2500
    present = np.array([[1.0, 0.0, 0.0], [0.3, 0.4, 0.5]])
    absent = np.array([[0.0, 0.6, 0.8], [0.3, 0.4, 0.5]])
    released = [
        np.stack([steps.moment_coordinates(steps.release_moments(x, step, 1.0, random)) for _ in range(runs)])
        for x in (present, absent)
    ]
    std = steps.moment_std(step, 1.0)
    for rows in released:
        assert np.cov(rows, rowvar=False) / std**2 == pytest.approx(np.eye(6), abs=6.0 / math.sqrt(runs))
    shift = np.linalg.norm(released[0].mean(axis=0) - released[1].mean(axis=0)) / std
    assert shift == pytest.approx(0.8, abs=6.0 * math.sqrt(2.0 / runs))


def test_the_executed_pipeline_stays_below_the_composed_bound() -> None:
    """The attack's score is the exact log-likelihood ratio of both releases: its mean of max(0, 1 - e^(eps - score)).

    A bound of the query alone, or of the projection alone, would be exceeded.
    """
    step, runs = read_step({"dp-pca": 1, "eps_noise": 1.0}), 3000
    m = PrivateMechanism(kind="gaussian", noise=1.2, records=3, released=1.0)
    engine = LinearEngine(private=m, radius=1.0)
    common = np.array([[0.9, 0.1], [0.9, -0.1]])
    sides = [np.vstack([row, common]) for row in (np.array([0.8, 0.6]), np.array([-0.8, 0.6]))]
    scores = np.fromiter(
        _scores_after_release(engine, step, 1.0, sides, np.ones(3), [0] * runs, np.random.default_rng(2), NoiseTally()),
        float,
    )
    for epsilon in (0.0, 0.5, 1.0):
        losses = np.maximum(0.0, 1.0 - np.exp(epsilon - scores))
        error = 4.0 * losses.std() / math.sqrt(runs)
        delta = float(losses.mean())
        assert repaired_epsilon(m, 0.0, 0.0, delta - error) >= epsilon
    for alone in (
        PrivateMechanism(kind="gaussian", noise=1.2, records=3),
        PrivateMechanism(kind="gaussian", noise=1.0),
    ):
        assert repaired_epsilon(alone, 0.0, 0.0, delta - error) < 1.0


def test_the_composed_profile_is_that_of_two_gaussian_releases() -> None:
    """By integration over both outputs of N(0, I) against N((mu_1, mu_2), I)."""
    first, second, epsilon = 0.8, 1.1, 0.7
    grid = np.linspace(-8.0, 10.0, 1001)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2 / (2.0 * math.pi)
    present = np.exp(-0.5 * ((x - first) ** 2 + (y - second) ** 2)) * cell
    absent = np.exp(-0.5 * (x**2 + y**2)) * cell
    delta = float(np.maximum(0.0, present - math.exp(epsilon) * absent).sum())
    m = PrivateMechanism(kind="gaussian", noise=second, released=first)
    assert repaired_epsilon(m, 0.0, 0.0, delta) == pytest.approx(epsilon, abs=1e-4)
    order = 3.0  # the Renyi divergence of the same pair
    ratio = float((present**order * np.where(absent > 0.0, absent, np.inf) ** (1.0 - order)).sum())
    assert repaired_divergence(m, order, 0.0, 0.0) == pytest.approx(math.log(ratio) / (order - 1.0), rel=1e-3)


@pytest.mark.usefixtures("claimed_deltas_alone")
def test_a_private_projection_is_proved_for_all_data(tmp_path: Path) -> None:
    audit = audited(tmp_path)
    (upper,) = (f for f in audit.findings if f.bound == "upper")
    alone = repaired_epsilon(PrivateMechanism(kind="gaussian", noise=0.5, records=400), 0.0, 0.0, 1e-5)
    assert upper.scope.data == "all"
    assert upper.value == pytest.approx(alone, rel=1e-9)  # 0.3^2 + 0.4^2 = 0.5^2
    assert [v.verdict for v in audit.verdicts] == ["proved"]
    (noise,) = audit.checks
    assert noise.p_value > 1e-6


@pytest.mark.usefixtures("claimed_deltas_alone")
def test_without_pre_processing_the_bound_is_attained(tmp_path: Path) -> None:
    audit = audited(tmp_path, "mechanism.pipeline=[]", "audit=null")
    upper, lower = (next(f for f in audit.findings if f.bound == bound) for bound in ("upper", "lower"))
    assert {upper.scope.data, lower.scope.data} == {"all"}
    assert lower.value == pytest.approx(upper.value, rel=1e-6)


@pytest.mark.family
@pytest.mark.usefixtures("claimed_deltas_alone")
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "exponential", "dp-gd", "sgd-sampled", "sgd-iterated"])
@pytest.mark.parametrize("pipeline", ["[]", "[{dp-pca: 2, eps_noise: 0.4}]"])
def test_every_mechanism_is_executed_after_it(tmp_path: Path, kind: str, pipeline: str) -> None:
    steps_of = {"dp-gd": ", steps: 5, loss: logistic", "sgd-sampled": ", steps: 5, loss: squared"}
    private = f"{{kind: {kind}, eps_noise: 0.05{steps_of.get(kind, ', loss: logistic' if kind[:3] == 'sgd' else '')}}}"
    access = ["threat_model.access=final-model"] if kind == "sgd-iterated" else []
    audit = audited(tmp_path, f"mechanism.private={private}", f"mechanism.pipeline={pipeline}", *access)
    assert [v.verdict for v in audit.verdicts] == ["proved"]
    assert all(c.p_value > 1e-6 for c in audit.checks)
    assert len(audit.checks) == (0 if (kind, pipeline) == ("exponential", "[]") else 1)


@pytest.mark.usefixtures("claimed_deltas_alone")
def test_noise_of_the_moments_of_another_size_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = steps.moment_noise
    monkeypatch.setattr(steps, "moment_noise", lambda d, std, random: exact(d, 0.5 * std, random))
    assert audited(tmp_path, "audit.repeats=60").conformance.status == "deviates"


@pytest.mark.usefixtures("claimed_deltas_alone")
def test_claims_about_the_loss_are_tested_on_all_runs(tmp_path: Path) -> None:
    losses = [
        "{id: low, kind: metric, name: loss, at_most: 0.69}",
        "{id: lower, kind: metric, name: loss, at_most: 0.01}",
        "{id: first, kind: metric, name: loss, about: model, at_most: 0.01}",
    ]
    audit = audited(tmp_path, "mechanism.pipeline=[]", GD, f"claims=[{', '.join(losses)}]", "audit.runs=8")
    assert [v.verdict for v in audit.verdicts] == ["supported", "refuted", "refuted"]
    assert {e.kind for e in audit.evidence if e.quantity == "loss"} == {"bounded-average", "bounded-mean"}
    largest = math.log1p(math.e)  # theta_radius 1, records of norm 1
    assert all(e.statistics["largest"] == pytest.approx(largest) for e in audit.evidence if e.quantity == "loss")
