"""What else the paper states, as the report shows it: against exact values, and with printed forms flagged."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from support import per_instance_brute as brute
from support import specs
from support.per_instance_brute import amplified_stick

from dpspec.contract import Facts, Finding, Series, Spec
from dpspec_papers.per_instance import NORMS, best_lemma, compare, fact_3_5, lemma
from dpspec_per_instance.bounds import Composer, entropic_mean, step_divergence
from dpspec_per_instance.one_step import epsilons

MNIST = 128 / 60000

FACTS = Facts(records=60000, test_records=0, features=784, shape=(784,), classes=2)

TEXT = """\
dpspec: 1
name: stated
mechanism:
  kind: per-instance
  noise_multiplier: 0.469
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.0021333333333333334}
  steps: 100
  orders: [1.5, 2, 3, 4, 8]
data: {kind: declared, records: 60000, features: 784}
claims:
  - {id: everyone, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
"""


def spec_of(folder: Path, *overrides: str) -> Spec:
    return specs.spec_of(folder, TEXT, *overrides)


def stated(spec: Spec) -> tuple[dict[str, list[Finding]], dict[str, Series]]:
    findings: dict[str, list[Finding]] = {}
    tables: dict[str, Series] = {}
    for one in compare(spec, FACTS, ()):
        if isinstance(one, Finding):
            findings.setdefault(one.quantity, []).append(one)
        else:
            tables[one.name] = one
    return findings, tables


def test_at_the_papers_own_setting_the_printed_constant_backs_nothing(tmp_path: Path) -> None:
    """Batches of 128 of MNIST: Corollary 3.1 holds with the exact profile, and as printed it is flagged as refuted."""
    findings, tables = stated(spec_of(tmp_path))
    exact, amplified, printed = findings["step_epsilon"]
    assert exact.value <= 1.7202213 * (1 + 1e-6)  # p = 10^4; larger ones are not tried, smaller may be better
    assert exact.value == pytest.approx(1.7202213, rel=1e-3)
    assert amplified_stick(1 / 0.469, MNIST)(exact.value) <= 1e-5
    assert amplified_stick(1 / 0.469, MNIST)(amplified.value) == pytest.approx(1e-5)  # tight
    assert amplified.value == pytest.approx(1.3242811, rel=6e-8)
    assert exact.printed is None
    assert printed.printed.refuted
    assert printed.value == pytest.approx(1.6258586, rel=1e-3)
    rows = tables["one-step"].columns
    assert rows["norm"] == NORMS
    assert rows["printed_holds"][-1] == "no"
    assert rows["printed_holds"][0] == "yes"
    assert {f.scope.direction for f in findings["step_epsilon"]} == {"remove"}


@pytest.mark.parametrize(("q", "sigma", "norm"), [(0.05, 0.8665, 1.0), (1.0, 2.0, 0.7), (0.3, 1.0, 0.2)])
def test_the_best_lemma_is_above_every_attack(q: float, sigma: float, norm: float) -> None:
    """The best attack on one step without other records is a half line of the noisy sum."""
    fpr, mu = np.geomspace(1e-7, 0.5, 30), norm / sigma
    best = (1 - q) * fpr + q * ndtr(mu + ndtri(fpr))
    found = best_lemma(q, sigma, norm, 1e-5, fpr)
    assert np.all(best <= found)
    assert np.all(found <= 1.0)
    assert found[0] < 0.01


def test_counts_orders_and_unlearning_are_those_of_the_formulas(tmp_path: Path) -> None:
    findings, tables = stated(
        spec_of(
            tmp_path,
            "mechanism.noise_multiplier=20",
            "audit={method: many-run, runs: 4}",
            "data={kind: synthetic}",
            "model={kind: linear}",
        )
    )
    composer = Composer(spec_of(tmp_path, "mechanism.noise_multiplier=20").mechanism.options, "present-first")
    right, printed = findings["runs_enough"]
    order = right.at["alpha"]
    as_printed, count = fact_3_5(order, composer.baseline(order), composer.baseline(2 * order), 0.1, 0.05)
    assert (right.value, printed.value) == pytest.approx((max(1.0, count), as_printed))
    assert printed.printed.refuted
    rows = tables["unlearning"].columns
    at = {(o, n): (d, p) for o, n, d, p in zip(*(rows[name] for name in rows), strict=True)}
    step = {a: 100 * float(step_divergence(a, MNIST, 1 / 20)) for a in (3.0, 7.0, 15.0, 31.0)}
    assert at[2.0, 1][0] == pytest.approx(step[3.0])
    assert at[2.0, 2][0] == pytest.approx(1.5 * step[7.0] + step[3.0])
    assert at[2.0, 2][1] is None
    assert at[8.0, 2][0] == pytest.approx(7.5 / 7 * step[31.0] + step[15.0])
    assert at[8.0, 2][1] == pytest.approx(7 / 6 * step[31.0] + step[15.0])
    flagged = [f for f in findings["unlearning_divergence"] if f.printed is not None]
    assert flagged
    assert all(f.printed is not None and f.printed.refuted for f in flagged)


def test_counts_beyond_floats_are_infinite() -> None:
    assert fact_3_5(8.0, 700.0, 3000.0, 0.1, 0.05) == (0.0, math.inf)
    assert fact_3_5(2.0, 0.0, 0.0, 0.1, 0.05)[1] == 0.0


def test_the_lemma_holds_for_random_small_batches():
    """20 configurations: it is never below the exact one-sided trade-off."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        others, record = rng.uniform(-0.5, 0.5, int(rng.integers(0, 3))), float(rng.uniform(-1, 1))
        q, sigma, rule = float(rng.choice([0.1, 0.5])), float(rng.uniform(0.7, 2)), str(rng.choice(["sum", "mean"]))
        delta, p = float(rng.choice([0.02, 0.1])), float(rng.choice([1.5, 4.0, 20.0]))
        distances, logs = [], []
        for coins in brute.itertools.product((0, 1), repeat=len(others)):
            total, size = float(np.dot(coins, others)), sum(coins)
            before, after = total, total + record
            if rule == "mean":
                before, after = total / max(1, size), (total + record) / (size + 1)
            distances.append(abs(after - before))
            logs.append(sum(math.log(q if c else 1 - q) for c in coins))
        log_norm = entropic_mean(epsilons(distances, delta, sigma), p, logs)
        present, absent = brute.pair(others, record, q, rule)
        x = np.linspace(-8, 8, 33) * sigma
        for side in (1.0, -1.0):  # half lines, either way
            fpr = np.exp(absent.log_masses) @ ndtr(side * (x[None, :] - absent.values) / sigma)
            tpr = np.exp(present.log_masses) @ ndtr(side * (x[None, :] - present.values) / sigma)
            assert np.all(tpr <= lemma(q, log_norm, delta, p, fpr) + 1e-12)


def test_divergences_by_order_are_those_of_the_gaussian(tmp_path: Path) -> None:
    """At rate 1, n steps have n a / (2 sigma^2) at order a, in both directions."""
    _, tables = stated(spec_of(tmp_path, "mechanism.sampling.rate=1.0", "mechanism.noise_multiplier=4.0"))
    columns = tables["divergence-by-order"].columns
    assert columns["direction"] == ("remove",) * 5 + ("add",) * 5
    for order, first, run in zip(columns["order"], columns["first_step"], columns["run"], strict=True):
        assert first == pytest.approx(order / 32.0, rel=1e-6)
        assert run == pytest.approx(100.0 * order / 32.0, rel=1e-6)


def test_attacks_on_a_step_are_below_the_limits(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "mechanism.noise_multiplier=4", "mechanism.sampling={scheme: full}", "mechanism.steps=9")
    rows = stated(spec)[1]["attack-limits"].columns
    fpr = np.array(rows["fpr"])
    assert np.all(ndtr(1 / 4 + ndtri(fpr)) <= np.array(rows["one_step"]))
    assert rows["one_step"][0] < 1e-3
