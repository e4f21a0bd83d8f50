"""Whole audits by the preprocessing plugin: every step and mechanism, tables, and errors for other data."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import specs
from support.specs import ON_CPU

from dpspec.accounting import GaussianTradeOff
from dpspec.contract import FrozenMap, Section, Trial
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import SpecError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.reporters.risk import FALSE_POSITIVES, rates
from dpspec.testing import MechanismSuite, increasing
from dpspec_papers.preprocessing import epsilon_by
from dpspec_preprocessing.attack import check_trials
from dpspec_preprocessing.engines import LinearEngine, NoiseTally, score_output
from dpspec_preprocessing.options import Declaration
from dpspec_preprocessing.private import GRADIENT, QUERIES, Private, PrivateMechanism, repaired_divergence

SPECS = Path(__file__).parents[3] / "specs"

BASE = """\
dpspec: 1
name: audited
mechanism:
  kind: preprocessing
  pipeline: [{pca: 1}]
  private: {kind: gaussian, eps_noise: 0.3}
  collection: {min_eigengap: 0.1}
  clip_rows: true
data: {kind: synthetic, pattern: blobs, records: 600, features: 4, classes: 2, noise: 0.1, seed: 4, split: {test: 100}}
threat_model: {adjacency: replace-one}
claims:
  - {id: one, kind: approx-dp, epsilon: 1e6, delta: 1e-5, over: collection}
audit: {method: many-run, runs: 2, repeats: 12, seed: 3}
"""


def audited(tmp_path: Path, *overrides: str, text: str = BASE) -> AuditResult:
    return specs.audited(tmp_path, text, *overrides)


def ran(path: Path, tmp_path: Path, *overrides: str) -> AuditResult:
    return specs.audit_of(path, tmp_path / "store", *overrides)


def test_rates_of_membership_follow_from_many_deltas(tmp_path: Path) -> None:
    """For all datasets, at most the power of the composed Gaussian pair, up to the chords of its curve."""
    text = BASE[: BASE.index("audit:")].replace("eps_noise: 0.3", "eps_noise: 0.0005")
    result = audited(tmp_path, "claims=[{id: g, kind: gdp, mu: 9}]", text=text)
    effects = {f.scope.data: f.value for f in result.findings if (f.quantity, f.bound) == ("mu", "upper")}
    found = rates(result)
    assert len(found) == len(effects)
    for rate, mu in zip(found, sorted(effects.values()), strict=True):
        for fpr, power in zip(FALSE_POSITIVES, rate.powers, strict=True):
            assert fpr <= power < 1.1 * float(GaussianTradeOff(mu).tpr(fpr))


STEP = {
    "pca": ["mechanism.pipeline=[{pca: 2}]", "mechanism.collection={min_eigengap: 1e-9}"],
    "affine": ["mechanism.pipeline=[{pca: 2, affine: true}]", "mechanism.collection={min_eigengap: 1e-9}"],
    "scale": ["mechanism.pipeline=[{scale: standard, clip: 1.0}]", "mechanism.collection={min_std: 0.01}"],
    "deduplicate": ["mechanism.pipeline=[{deduplicate: 0.01}]", "mechanism.collection={max_ball: 60, max_cluster: 3}"],
    "quantise": [
        "mechanism.pipeline=[{quantise: 0.01}]",
        "mechanism.collection={max_ball: 60, max_cluster: 3}",
        "audit.clusters=4",
    ],
    "impute": ["mechanism.pipeline=[{impute: mean}]", "mechanism.collection={max_missing_rows: 20, min_observed: 450}"],
    "chain": ["mechanism.pipeline=[{impute: mean}, {deduplicate: 0.01}, {pca: 2}]", "mechanism.collection={}"],
}
PRIVATE = {
    "gaussian": "{kind: gaussian, eps_noise: 0.3}",
    "laplace": "{kind: laplace, eps_noise: 0.3}",
    "exponential": "{kind: exponential, eps_noise: 0.3}",
    "dp-gd": "{kind: dp-gd, eps_noise: 0.3, steps: 5, loss: logistic}",
    "squared": "{kind: dp-gd, eps_noise: 0.3, steps: 5, loss: squared}",
    "sgd-sampled": "{kind: sgd-sampled, eps_noise: 0.3, steps: 50, loss: logistic}",
    "sgd-iterated": "{kind: sgd-iterated, eps_noise: 0.01, loss: logistic}",
}


@pytest.mark.usefixtures("claimed_deltas_alone")
@pytest.mark.ci
@pytest.mark.parametrize("name", STEP)
def test_every_step_is_executed_and_bounded(tmp_path: Path, name: str) -> None:
    audit = audited(tmp_path, *STEP[name])
    uppers = {f.scope.data: f.value for f in audit.findings if f.bound == "upper" and f.at.get("delta") == 1e-5}
    assert uppers["all"] >= uppers.get("collection", 0.0)
    assert ("collection" in uppers) == (name != "chain")
    assert len(audit.trials) == 2
    assert [v.verdict for v in audit.verdicts] == ["proved"]
    assert all(f.value <= uppers["all"] for f in audit.findings if f.bound == "lower")


@pytest.mark.family
@pytest.mark.usefixtures("claimed_deltas_alone")
@pytest.mark.parametrize("name", PRIVATE)
def test_every_mechanism_is_executed_and_bounded(tmp_path: Path, name: str) -> None:
    access = ["threat_model.access=final-model"] if name == "sgd-iterated" else []
    audit = audited(tmp_path, f"mechanism.private={PRIVATE[name]}", *STEP["impute"], *access)
    assert [v.verdict for v in audit.verdicts] == ["proved"]
    accuracies = [f for f in audit.findings if f.quantity == "accuracy"]
    assert {f.at["split"] for f in accuracies} == ({"train", "test"} if "loss" in PRIVATE[name] else set())
    pure = [f for f in audit.findings if f.at.get("delta") == 0.0]
    assert bool(pure) == (name in ("laplace", "exponential"))
    observed = "measured" if name in QUERIES else "reported"
    noise = [] if name == "exponential" else [("noise-scale", observed)]
    assert [(c.assumption, c.observed) for c in audit.checks] == noise
    assert all(c.p_value > 1e-6 for c in audit.checks)
    spec = specs.spec_of(tmp_path, BASE, f"mechanism.private={PRIVATE[name]}", *STEP["impute"], *access)
    foreseen = [c.detectable for c in prepare(spec, load_catalog()).plan().checks]
    assert foreseen == [pytest.approx(c.detectable, rel=0.2) for c in audit.checks]


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_of_another_scale_is_seen(kind: str) -> None:
    m = PrivateMechanism(kind=kind, noise=0.5, records=50)
    louder = LinearEngine(private=replace(m, noise=0.5 / 1.2), radius=1.0)
    exact = np.zeros((50, 1))
    tally = NoiseTally()
    list(louder.execute([exact], np.ones(50), [0] * 4000, np.random.default_rng(3), tally))
    scale = (1.2**2) if kind == "gaussian" else 1.2
    evidence = FrozenMap({"noise": {"count": tally.count, "squares": tally.squares * scale}})
    block = Section("preprocessing", FrozenMap({"private": {"kind": kind}}))
    (check,) = check_trials(SimpleNamespace(mechanism=block), [Trial(index=0, evidence=evidence)])  # type: ignore[arg-type, list-item]
    assert check.p_value < 1e-6
    assert check.measured == pytest.approx(1.2, rel=0.05)


def test_data_outside_the_collection_is_an_error_that_suggests_a_test(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="outside the declared collection: min_eigengap") as raised:
        audited(tmp_path, "mechanism.collection.min_eigengap=0.99")
    assert "ptr" in str(raised.value)


def test_rows_outside_the_ball_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="outside the declared ball of radius 1"):
        audited(tmp_path, "mechanism.clip_rows=false")


@pytest.mark.usefixtures("claimed_deltas_alone")
def test_measured_values_are_kept_apart(tmp_path: Path) -> None:
    audit = audited(tmp_path, "data.public=false")
    privacy = {series.name: series.privacy for series in audit.series}
    assert privacy["measured"] == "data-dependent"
    assert privacy["epsilon-by-accounting"] == "public"


def test_a_conditional_bound_proves_no_claim_about_all_data(tmp_path: Path) -> None:
    claim = "claims.one={id: one, kind: approx-dp, epsilon: 60.0, delta: 1e-5, expect: supported}"
    step = ["mechanism.private.eps_noise=0.02"]
    assert [v.verdict for v in audited(tmp_path, claim, *step, "audit=null").verdicts] == ["supported"]
    tested = "mechanism.ptr={epsilon: 0.5, delta: 1e-5}"
    # Noise and directions assume 500 records: nothing is proved for fewer.
    assert [v.verdict for v in audited(tmp_path, claim, *step, tested, "audit=null").verdicts] == ["open"]
    audit = audited(tmp_path, claim.replace(", expect: supported", ", min_records: 500"), *step, tested)
    assert [v.verdict for v in audit.verdicts] == ["proved"]
    uppers = [f for f in audit.findings if f.bound == "upper"]
    # The test is released as well: no bound that leaves its cost out may stand.
    assert {(f.method, f.scope.data) for f in uppers} == {("propose-test-release", "all")}
    assert all(f.at["delta"] >= 1e-5 for f in uppers)
    refused = next(f for f in audit.findings if f.quantity == "refusal-probability")
    assert refused.privacy == "data-dependent"
    assert 0.0 < refused.value < 1.0


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "exponential"])
def test_queries_add_the_declared_noise(kind: str) -> None:
    m = PrivateMechanism(kind=kind, noise=0.7, records=50, lipschitz=0.6, sensitivity=1.0)
    engine = LinearEngine(private=m, radius=1.0)
    random = np.random.default_rng(5)
    x = random.normal(size=(50, 3))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]
    outputs = np.array(list(engine.execute([x], np.ones(50), [0] * 4000, random, NoiseTally())))
    exact = engine.query(x)
    if kind == "exponential":
        weights = np.exp(exact * 0.7 / 2.0)
        counts = np.bincount(outputs[:, 0].astype(int), minlength=3) / 4000
        assert counts == pytest.approx(weights / weights.sum(), abs=0.035)
        return
    spread = 1.0 / 0.7 if kind == "gaussian" else math.sqrt(2.0) / 0.7
    assert outputs.mean(axis=0) == pytest.approx(exact, abs=0.12)
    assert outputs.std(axis=0) == pytest.approx(np.full(len(exact), spread), rel=0.08)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_gradients_are_those_of_the_loss(loss: str) -> None:
    engine = LinearEngine(
        private=PrivateMechanism(kind="dp-gd", noise=1.0, records=1),
        radius=1.0,
        declared=Private(kind="dp-gd", loss=loss),
    )
    random = np.random.default_rng(6)
    step = 1e-6
    theta, x, y = random.normal(size=3), random.normal(size=(1, 3)), np.array([1.0])

    def value(t: np.ndarray[Any, Any]) -> float:
        margin = float(x[0] @ t)
        return math.log1p(math.exp(-margin)) if loss == "logistic" else 0.5 * (margin - 1.0) ** 2

    slope = [(value(theta + step * e) - value(theta - step * e)) / (2 * step) for e in np.eye(3)]
    assert engine.gradients(theta, x, y)[0] == pytest.approx(slope, abs=1e-8)


def test_training_is_dp_gd_as_published() -> None:
    m = PrivateMechanism(kind="dp-gd", noise=0.5, records=20, steps=6)
    engine = LinearEngine(private=m, radius=1.0, declared=Private(kind="dp-gd", learning_rate=0.4, theta_radius=0.3))
    random = np.random.default_rng(8)
    x, y = random.normal(size=(20, 3)) * 0.3, random.choice([-1.0, 1.0], size=20)
    noise = np.random.default_rng(4)
    theta, iterates = np.zeros(3), []
    for _ in range(6):
        mean = np.mean(
            [-label * row / (1.0 + math.exp(label * row @ theta)) for row, label in zip(x, y, strict=True)], 0
        )
        theta = theta - 0.4 * (mean + noise.normal(0.0, m.sigma, 3))
        theta = theta * min(1.0, 0.3 / np.linalg.norm(theta))
        iterates.append(theta)
    assert engine.train(x, y, np.random.default_rng(4)) == pytest.approx(np.mean(iterates, axis=0))


def test_scores_are_likelihood_ratios() -> None:
    one, other = np.array([1.0]), np.array([0.0])
    laplace = PrivateMechanism(kind="laplace", noise=0.5)
    assert score_output(laplace, np.array([0.3]), one, other) == pytest.approx((0.3 - 0.7) * 0.5)
    gaussian = PrivateMechanism(kind="gaussian", noise=0.5)
    assert score_output(gaussian, np.array([0.5]), one, other) == 0.0
    assert score_output(gaussian, one, one, one) == 0.0


@pytest.mark.ci
@pytest.mark.usefixtures("claimed_deltas_alone")
def test_the_side_channel_of_deduplicated_digits(tmp_path: Path) -> None:
    audit = ran(SPECS / "preprocessing" / "dedup-side-channel.yaml", tmp_path)
    verdicts = {v.claim: v for v in audit.verdicts}
    assert verdicts["counted"].verdict == "proved"
    assert verdicts["ignored"].verdict == "refuted"
    lower, upper = verdicts["counted"].lower, verdicts["counted"].upper
    assert lower is not None and upper is not None  # noqa: PT018
    assert 1.56 < lower < upper


@pytest.mark.ci
@pytest.mark.usefixtures("claimed_deltas_alone")
def test_a_table_with_missing_values_from_end_to_end(tmp_path: Path) -> None:
    audit = ran(SPECS / "preprocessing" / "imputed-csv.yaml", tmp_path)
    assert all(v.expected for v in audit.verdicts)
    measured = next(s for s in audit.series if s.name == "measured")
    found = dict(zip(measured.columns["limit"], measured.columns["measured"], strict=True))
    assert found["max_missing_rows"] == 46
    assert measured.privacy == "data-dependent"


@pytest.mark.parametrize(
    ("pipeline", "overrides", "message"),
    [
        ("[{quantise: 0.01}]", ["audit=null", "mechanism.collection={max_ball: 9}"], "values are missing"),
        ("[{scale: standard, clip: 1.0}, {quantise: 0.0}]", ["audit.repeats=20"], "cannot run on these records"),
    ],
)
def test_missing_values_need_imputation(tmp_path: Path, pipeline: str, overrides: list[str], message: str) -> None:
    path = SPECS / "preprocessing" / "imputed-csv.yaml"
    text = path.read_text(encoding="utf-8").replace("[{impute: mean}]", pipeline)
    target = tmp_path / "no.yaml"
    target.write_text(text.replace("path: patients.csv", f"path: {path.parent / 'patients.csv'}"), encoding="utf-8")
    with pytest.raises(SpecError, match=message):
        ran(target, tmp_path, *overrides)


@pytest.mark.ci
def test_figure_2_has_three_panels(tmp_path: Path) -> None:
    catalog = load_catalog()
    loaded = load_specs([SPECS / "papers" / "preprocessing-figure-2.yaml"], catalog)
    result = run(loaded.specs, catalog, store=Store(tmp_path / "store"), options=ON_CPU)
    tables = [next(s.columns for s in audit.series if s.name == "epsilon-by-accounting") for audit in result.audits]
    cells = [dict(zip(table["accounting"], table["epsilon"], strict=True)) for table in tables]
    first, second, third = cells[:8], cells[8:18], cells[18:]
    assert tables[4]["standing"] == ("no bound", "theorem", "refuted", "refuted", "theorem")
    assert first[4]["Table 2"] == pytest.approx(23.7908, abs=5e-5)
    assert first[4]["Theorem 2"] == pytest.approx(9.4338, abs=5e-5)
    assert second[2]["Theorem 2"] == pytest.approx(4.3124, abs=5e-5)
    assert second[2]["repaired"] == pytest.approx(3.2173, abs=5e-5)
    assert third[6]["repaired"] == pytest.approx(third[4]["repaired"], rel=0.01)
    assert third[6]["group privacy"] > 1e6 * third[6]["repaired"]


@pytest.mark.ci
def test_table_2_in_all_modes(tmp_path: Path) -> None:
    audit = ran(SPECS / "papers" / "preprocessing-table-2.yaml", tmp_path)
    assert all(v.expected for v in audit.verdicts)
    tables = {s.name: s for s in audit.series if s.name.startswith("table-2-")}
    assert list(tables) == ["table-2-deduplicate", "table-2-quantise", "table-2-impute-mean", "table-2-pca"]
    assert tables["table-2-deduplicate"].columns["printed"][0] == pytest.approx(1.05 * 11 * 1e-6 * 37)
    assert "refuted" in tables["table-2-quantise"].source
    assert tables["table-2-pca"].columns["printed"][-1] is None


@pytest.mark.usefixtures("claimed_deltas_alone")
class TestPreprocessing(MechanismSuite):
    kind = "preprocessing"
    monotone = {  # noqa: RUF012
        "mechanism.private.eps_noise": increasing(0.2, 0.3, 0.6),
        "mechanism.radius": increasing(0.5, 1.0, partial=True),
    }


@pytest.mark.family
@pytest.mark.parametrize(
    ("clip", "private", "expected", "origin"),
    [
        (
            3.0,
            "{kind: dp-gd, eps_noise: 0.3, steps: 60, loss: logistic, theta_radius: 2.0}",
            # L = r / (1 + exp(-R r)) for norm r and radius R; sigma = L sqrt(T) / (eps_noise n)
            {"Lipschitz constant L": 2.9925821, "smoothness mu": 2.4975274, "noise std sigma": 0.07726814},
            "logistic loss, record norm 3",
        ),
        (
            1.0,
            "{kind: laplace, eps_noise: 0.5, lipschitz: 0.3, sensitivity: 2.0}",
            {"Lipschitz constant L": 0.3, "sensitivity": 2.0, "noise scale": 4.0},
            "declared",
        ),
    ],
)
def test_constants(clip: float, private: str, expected: dict[str, float], origin: str, tmp_path: Path) -> None:
    step = [f"mechanism.pipeline=[{{scale: standard, clip: {clip}}}]", "mechanism.collection={min_std: 0.1}"]
    data = ["data={kind: declared, records: 1000, features: 10, classes: 2}", "audit=null"]
    audit = audited(tmp_path, *step, *data, f"mechanism.private={private}")
    columns = next(series.columns for series in audit.series if series.name == "constants")
    assert dict(zip(columns["constant"], columns["value"], strict=True)) == pytest.approx(expected, rel=1e-6)
    assert columns["from"][0] == origin


STEPS: dict[str, dict[str, Any]] = {
    "mean": {"impute": "mean"},
    "median": {"impute": "median"},
    "trimmed": {"impute": "trimmed", "trim": 10},
    "regression": {"impute": "regression"},
    "deduplicate": {"deduplicate": 0.01},
    "quantise": {"quantise": 0.01},
    "pca": {"pca": 2},
    "scale": {"scale": "standard", "clip": 1.0},
}


LIMITS = {
    "max_missing_rows": 20,
    "max_missing_in_row": 2,
    "min_observed": 950,
    "max_mean_norm": 0.5,
    "max_spread": 0.01,
    "min_eigenvalue": 100.0,
    "max_eigenvalue": 400.0,
    "max_ball": 5,
    "max_cluster": 2,
    "min_eigengap": 0.3,
    "min_std": 0.2,
}


def block(step: str, kind: str, **limits: float) -> dict[str, Any]:
    private: dict[str, Any] = {"kind": kind, "eps_noise": 0.01}
    if kind in ("dp-gd", "sgd-sampled", "sgd-iterated"):
        private |= {"loss": "logistic", "steps": 100}
    return {"pipeline": (STEPS[step],), "private": private, "collection": {**LIMITS, **limits}}


@pytest.mark.family
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [*QUERIES, *GRADIENT])
def test_what_is_proved_lies_between(step: str, kind: str) -> None:
    found = Declaration.of(block(step, kind)).pipeline(1000, 6)
    for order in (2.0, 16.0):
        ways = ((None, 0.0), (found.tau, found.changed), (None, found.changed))
        ignored, proved, group = (repaired_divergence(found.private, order, *way) for way in ways)
        assert 0.0 < ignored <= proved * (1.0 + 1e-12)
        assert proved <= group
        assert math.isfinite(proved) or kind == "sgd-iterated"
    ignored, proved, group = (epsilon_by(found, way, 1e-5) for way in ("ignored", "repaired", "group"))
    assert 0.0 <= ignored <= proved * (1.0 + 1e-9)
    assert proved <= group
    # Scaled records move so far that no order is admissible for the last iterate's curve.
    assert math.isfinite(proved) == ((step, kind) != ("scale", "sgd-iterated"))


def test_divergences_by_order_and_accounting(tmp_path: Path) -> None:
    """Without pre-processing, the Gaussian mechanism has a e^2 / 2 at order a (Table 1); Table 2 begins at order 11."""
    text = BASE.replace("audit: {method: many-run, runs: 2, repeats: 12, seed: 3}", "")
    audit = audited(tmp_path, text=text)
    columns = next(series.columns for series in audit.series if series.name == "divergence-by-order")
    found: dict[str, dict[float, float]] = {}
    for title, order, value in zip(columns["accounting"], columns["alpha"], columns["divergence"], strict=True):
        found.setdefault(title, {})[order] = value
    for order, value in found["ignoring pre-processing"].items():
        assert value == pytest.approx(0.5 * order * 0.3**2, rel=1e-9)
    for order, value in found["repaired"].items():
        assert found["ignoring pre-processing"][order] < value <= found["group privacy"][order] * (1 + 1e-9)
    assert min(found.get("Table 2", {11.0: 0.0})) >= 11.0
