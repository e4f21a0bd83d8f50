"""Tables of the plugin, as in the paper's figures; mu, rates and the advantage of groups."""

import functools
import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp
from support import scope_oracle as oracle
from support.attacks import spec_at
from support.group_cases import gradients_within, mechanisms
from support.specs import ON_CPU

from dpspec.accounting import Interval, Mixture, PrivacyLoss, composed_rdp, gaussian
from dpspec.contract import Claim, Finding, Series
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog
from dpspec.reporters.figures import series_chart
from dpspec.testing import MechanismSuite, constant, decreasing, increasing
from dpspec_group import GroupAudit, bounds, theory

SPECS = Path(__file__).parents[3] / "specs"
PAPERS, BOUNDS_ONLY = SPECS / "papers", SPECS / "bounds-only.yaml"


def series_of(name: str, path: Path, store: Path, *overrides: str) -> Series:
    (audit,) = run([spec_at(path, *overrides)], load_catalog(), store=Store(store), options=ON_CPU).audits
    (series,) = [series for series in audit.series if series.name == name]
    return series


table = functools.partial(series_of, "epsilon-by-group-size")
profile = functools.partial(series_of, "delta-against-epsilon", BOUNDS_ONLY)


@pytest.mark.parametrize("noise", [3.1, 3.3, 3.7])
def test_the_epsilon_in_a_method_is_rounded_up(noise: float, tmp_path: Path) -> None:
    """The loss of full batches is Gaussian, so that mu implies the certified epsilon."""
    full = ("mechanism.sampling={scheme: full}", "mechanism.steps=4", f"mechanism.noise_multiplier={noise}")
    claims = "claims=[{id: mu, kind: gdp, mu: 9}, {id: e, kind: approx-dp, epsilon: 9, delta: 1e-5}]"
    spec = spec_at(BOUNDS_ONLY, *full, claims, "threat_model.group_size=[1]")
    (audit,) = run([spec], load_catalog(), store=Store(tmp_path), options=ON_CPU).audits
    (method,) = {f.method for f in audit.findings if (f.quantity, f.bound) == ("mu", "upper")}
    (certified,) = {f.value for f in audit.findings if f.bound == "upper" and f.at.get("delta") == 1e-5}
    stated = [float(number) for number in re.findall(r"(?:implies epsilon|certified:) ([0-9.]+)", method)]
    assert len(stated) == 2
    assert all(certified <= number <= certified * 1.001 for number in stated)


def chernoff(size: int) -> float:
    """An upper bound on the literal conversion: delta_1 <= e^(s (R(1 + s) - e)) for each order 1 + s of RDP."""
    orders = np.linspace(size + 1.02, size + 5.0, 400)
    tilts = orders - 1.0
    divergences = composed_rdp([(Mixture.poisson(1, 0.01, 1.0), 2000)], orders)
    return size * float(np.min((tilts * divergences + math.log(size / 1e-6)) / (tilts - size)))


@pytest.mark.ci
def test_figure_1_at_noise_1(tmp_path: Path) -> None:
    """Values of an independent computation, relative 1e-4; a Chernoff bound of the literal factor."""
    sizes = "threat_model.group_size=[1, 2, 5, 8, 9, 10]"
    series = table(PAPERS / "ganesh-figure-1.yaml", tmp_path, "mechanism.noise_multiplier=1.0", sizes)
    expected = {
        "group_size": [1, 2, 5, 8, 9, 10],
        "epsilon": [2.95524591, 6.43259993, 19.11905618, 34.89069562, 40.80104472, 47.03011269],
        "linear": [2.955246, 5.910492, 14.776230, 23.641967, 26.597213, 29.552459],
        "vadhan-literal": [2.95525, 8.55565, 50.19425, 1614.62734, 61132.481, 176884.834],
        "vadhan-sharp": [2.95525, 6.95835, 33.32644, 272.71978, 1766.00878, 67857.196],
    }
    for name, values in expected.items():
        for found, wanted in zip(series.columns[name], values, strict=True):
            assert found == pytest.approx(wanted, rel=1e-4), name
    for size, literal in zip((9, 10), series.columns["vadhan-literal"][-2:], strict=True):
        assert 0.99 * chernoff(size) <= literal <= chernoff(size)
    assert chernoff(9) == pytest.approx(61416.25, rel=1e-6)
    assert series.rigor == "theorem"  # the baselines of Vadhan; without them the bounds are certified


@pytest.mark.ci
def test_figure_2_at_noise_2(tmp_path: Path) -> None:
    series = table(
        PAPERS / "ganesh-figure-2.yaml",
        tmp_path,
        "mechanism.noise_multiplier=2.0",
        "threat_model.group_size=[8, 12]",
        "claims.text.group_size=12",
    )
    assert series.columns["epsilon"][1] == pytest.approx(60.39340542, rel=1e-4)


@pytest.mark.ci
@pytest.mark.parametrize("baselines", ["", "linear"])
def test_without_baselines_or_with_marked_ones_the_table_is_certified(baselines: str, tmp_path: Path) -> None:
    """The legend marks the line of ``linear`` as no bound."""
    chosen = f"mechanism.baselines=[{baselines}]"
    series = table(PAPERS / "ganesh-figure-1.yaml", tmp_path, "mechanism.noise_multiplier=4.0", chosen)
    assert set(series.columns) == {"group_size", "epsilon", *filter(None, [baselines])}
    assert (series.rigor, "linear" in series.bounds) == ("certified", False)
    chart = series_chart(series)
    assert chart is not None
    labels = [line.label.removesuffix(" (no bound)") for line in chart.lines]
    assert labels == (["epsilon", "linear"] if baselines else [chart.lines[0].label])


def test_baselines_are_no_part_of_a_trial() -> None:
    figure, noise = PAPERS / "ganesh-figure-1.yaml", "mechanism.noise_multiplier=1.0"
    plain, other = spec_at(figure, noise), spec_at(figure, noise, "mechanism.baselines=[]")
    assert plain.digest != other.digest
    catalog = load_catalog()
    assert prepare(plain, catalog).trial_inputs() == prepare(other, catalog).trial_inputs()


# --- delta against epsilon


def rows(series: Series) -> list[tuple[int, float, float, float]]:
    names = ("group_size", "epsilon", "lower", "delta")
    return list(zip(*(series.columns[name] for name in names), strict=True))


@pytest.mark.ci
def test_epsilon_falls_with_delta_and_rises_with_the_group(tmp_path: Path) -> None:
    found = rows(profile(tmp_path))
    by_size = {size: list(group) for size, group in itertools.groupby(found, key=lambda row: row[0])}
    assert list(by_size) == [1, 2, 4, 8]
    for group in by_size.values():
        assert len({delta for *_, delta in group}) == len(group) >= 24
        epsilons = [epsilon for _, epsilon, _, _ in sorted(group, key=lambda row: row[3])]
        assert epsilons == sorted(epsilons, reverse=True)
        assert all(0.0 <= lower <= epsilon for _, epsilon, lower, _ in group)
    for small, large in itertools.pairwise(by_size.values()):
        assert all(a[1] <= b[1] for a, b in zip(small, large, strict=True))


@pytest.mark.parametrize(
    ("claims", "fine"),
    [([("approx-dp", {"epsilon": 9.0, "delta": 1e-6})], {1e-6}), ([("gdp", {"mu": 9.0})], set(bounds.PROFILE_DELTAS))],
    ids=["epsilon", "mu"],
)
def test_what_claims_rest_on_is_narrow_and_the_rest_is_the_worse_of_both(tmp_path, claims, fine):
    stated = [{"id": f"claim-{i}", "kind": kind, **options} for i, (kind, options) in enumerate(claims)]
    overrides = ["threat_model.group_size=[1]", f"claims={json.dumps(stated)}"]
    spec = spec_at(BOUNDS_ONLY, *overrides)
    context = SimpleNamespace(facts=SimpleNamespace(records=50_000), progress=lambda *_: None)
    curves = bounds.epsilon_curves(spec, context)  # type: ignore[arg-type]
    found = curves.intervals[1]
    assert set(found) == {"remove", "add", "both"}
    assert curves.whole == "both"
    assert set(found["remove"]) == set(found["add"]) == fine
    assert set(found["both"]) == set(bounds.PROFILE_DELTAS)
    step = Mixture.poisson(1, spec.phases[0].rate(), spec.phases[0].noise_multiplier)
    alone = {
        name: PrivacyLoss(((step, spec.steps),), way).epsilons(sorted(found["both"]))
        for name, way in theory.DIRECTIONS.items()
    }
    for delta, remove, add in zip(sorted(found["both"]), alone["remove"], alone["add"], strict=True):
        width = theory.WIDTH if delta in fine else theory.CURVE_WIDTH
        assert meet(found["both"][delta], remove.worse(add))
        assert found["both"][delta].relative_width <= width
        if delta in fine:
            assert meet(found["remove"][delta], remove)
            assert meet(found["add"][delta], add)
            assert max(found[side][delta].relative_width for side in ("remove", "add")) <= width


def meet(one: Interval, other: Interval) -> bool:
    return one.lower <= other.upper and other.lower <= one.upper


@pytest.mark.ci
def test_full_batches_give_the_gaussian_profile(tmp_path: Path) -> None:
    """With every record in every step, T steps of noise s and groups of k are one Gaussian of effect k sqrt(T) / s."""
    series = profile(
        tmp_path, "mechanism.sampling={scheme: full}", "mechanism.steps=100", "mechanism.noise_multiplier=20"
    )
    for size, epsilon, lower, delta in rows(series):
        exact = float(gaussian.epsilon(delta, size * 0.5))
        assert lower <= exact * (1 + 1e-12)
        assert exact * (1 - 1e-12) <= epsilon <= exact * (1 + 1e-6) + 1e-12


class TestGroup(MechanismSuite):
    kind = "group"
    monotone = {  # noqa: RUF012
        "mechanism.noise_multiplier": decreasing(0.8, 1.0, 2.0),
        "mechanism.steps": increasing(5, 20, 60),
        "mechanism.sampling.rate": increasing(0.02, 0.1, 0.4),
        "mechanism.clip_norm": constant(0.5, 2.0),
    }


# --- mu, rates and the advantage: closed forms of one step, and datasets through executed code


ONE = {"noise_multiplier": 1.3, "clip_norm": 2.0, "sampling": {"scheme": "poisson", "rate": 0.2}, "steps": 1}
FEW = {"suppress_health_check": list(HealthCheck)}


def found(phases: list[dict[str, Any]], claims: list[Claim], records: int = 100) -> list[Finding]:
    spec = oracle.spec_of("group", {"phases": phases, "baselines": ()}, claims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "CURVE_DELTAS", (1e-4,))
        patch.setattr(bounds, "PROFILE_DELTAS", (1e-2,))
        return [f for f in oracle.remembered_findings_of(GroupAudit(), spec, records) if f.quantity != "epsilon"]


def of(quantity: str, bound: str, findings: list[Finding]) -> float:
    (value,) = {f.value for f in findings if (f.quantity, f.bound) == (quantity, bound)}
    return value


@pytest.mark.parametrize(("scheme", "shift"), [("poisson", 3.0), ("full", 3.0), ("fixed", 6.0)])
def test_mu_is_that_of_the_largest_shifts(scheme: str, shift: float) -> None:
    sampling: dict[str, Any] = {"scheme": scheme}
    sampling |= {"poisson": {"rate": 0.2}, "fixed": {"batch_size": 5}, "full": {}}[scheme]
    phases = [{**ONE, "sampling": sampling, "steps": 4}, {**ONE, "noise_multiplier": 2.0, "sampling": sampling}]
    claims = [oracle.claim_of("gdp", group_size=3, mu=1.0)]
    findings = found(phases, claims)
    assert of("mu", "upper", findings) == pytest.approx(shift * math.sqrt(4 / 1.3**2 + 1 / 2.0**2), rel=1e-8)
    if scheme == "full":  # a Gaussian mechanism: both ends meet, up to the width of the certified epsilon
        assert of("mu", "lower", findings) == pytest.approx(of("mu", "upper", findings), rel=2e-3)


def test_no_smaller_mu_holds_for_all_deltas_of_a_sampled_step() -> None:
    """At level Phi(-z) the best test of one step has the power (1 - q) Phi(-z) + q Phi(mu - z)."""
    q, mu = 0.2, 1 / 1.3
    z = np.array([1.0, 3.0, 10.0, 100.0, 1000.0])
    power = np.logaddexp(math.log1p(-q) + log_ndtr(-z), math.log(q) + log_ndtr(mu - z))
    needed = ndtri_exp(power) + z
    assert np.all(np.diff(needed) > 0.0)
    assert needed[0] < 0.5 * mu
    assert 0.99 * mu < needed[-1] <= mu * (1 + 1e-9)
    findings = found([ONE], [oracle.claim_of("gdp", mu=1.0)])
    assert of("mu", "upper", findings) == pytest.approx(mu, rel=1e-8)
    assert 0.3 * mu < of("mu", "lower", findings) < mu  # deltas stop at 1e-4


@pytest.mark.family
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("fpr", [1e-6, 0.01, 0.4])
def test_rates_are_those_of_the_best_test_of_one_step(size: int, fpr: float) -> None:
    """The likelihood ratio rises with the noisy sum: the best tests have thresholds."""
    chances = [math.comb(size, j) * 0.2**j * 0.8 ** (size - j) for j in range(size + 1)]

    def above(cut: float) -> float:
        return sum(p * float(ndtr((j - cut) / 1.3)) for j, p in enumerate(chances))

    def below(cut: float) -> float:
        return sum(p * float(ndtr((cut - j) / 1.3)) for j, p in enumerate(chances))

    present = above(-1.3 * float(ndtri(fpr)))
    absent = float(ndtr(brentq(lambda cut: below(cut) - fpr, -20.0, 20.0, xtol=1e-12) / 1.3))
    for direction, exact in (("remove", present), ("add", absent), ("both", max(present, absent))):
        findings = found([ONE], [oracle.claim_of("membership", direction, size, tpr=0.5, fpr=fpr)])
        low, high = of("tpr", "lower", findings), of("tpr", "upper", findings)
        assert low <= exact * (1 + 1e-9)
        assert exact <= high * (1 + 1e-9)
        assert high - low <= 2e-3 * high
    points = ({"fpr": fpr, "tpr": 0.5}, {"fpr": 0.0, "tpr": 0.5})
    findings = found([ONE], [oracle.claim_of("tradeoff", "both", size, points=points)])
    assert {f.at["fpr"] for f in findings} == {fpr}
    assert of("tpr", "upper", findings) >= max(present, absent)


def test_the_advantage_is_the_total_variation_of_one_step() -> None:
    exact = 0.2 * (2.0 * float(ndtr(0.5 / 1.3)) - 1.0)
    for direction in ("remove", "add", "both"):
        findings = found([ONE], [oracle.claim_of("membership", direction, advantage=0.5)])
        assert of("advantage", "lower", findings) <= exact <= of("advantage", "upper", findings) < exact * 1.002


def test_nothing_is_bounded_without_noise_or_without_a_claim() -> None:
    assert found([{**ONE, "noise_multiplier": 0.0}], [oracle.claim_of("gdp", mu=1.0)]) == []
    assert found([ONE], [oracle.claim_of("approx-dp", epsilon=1.0, delta=1e-4)]) == []


@pytest.mark.parametrize(
    ("direction", "delta", "verdict"),
    [
        ("both", 0.35, "refuted"),  # two steps draw the record with probability 0.36, and show it then
        ("both", 0.37, "open"),
        ("remove", 1e-9, "refuted"),
        ("add", 1e-9, "open"),  # sums without the record can be those of batches without it
    ],
)
def test_steps_without_noise_refute_every_epsilon_below_the_probability_that_they_draw_a_record(
    direction: str, delta: float, verdict: str, tmp_path: Path
) -> None:
    phases = "[{steps: 3, noise_multiplier: 1.0}, {steps: 2, noise_multiplier: 0}]"
    claim = f"{{id: c, kind: approx-dp, epsilon: 1e3, delta: {delta}, direction: {direction}}}"
    mechanism = f"{{kind: group, clip_norm: 1.0, sampling: {{scheme: poisson, rate: 0.2}}, phases: {phases}}}"
    spec = spec_at(BOUNDS_ONLY, f"mechanism={mechanism}", f"claims=[{claim}]")
    (audit,) = run([spec], load_catalog(), store=Store(tmp_path), options=ON_CPU).audits
    (judged,) = audit.verdicts
    assert judged.verdict == verdict
    assert ("epsilon is infinite, above the claimed 1000" in judged.reason) == (verdict == "refuted")


@pytest.mark.ci
@settings(**FEW)
@given(mechanisms(), st.sampled_from(("add", "remove", "both")), st.data())
def test_no_data_sets_in_scope_leak_more(case: dict[str, Any], direction: str, data: st.DataObject) -> None:
    claims = [
        oracle.claim_of("gdp", direction, case["size"], mu=1.0),
        oracle.claim_of("membership", direction, case["size"], advantage=0.5),
        oracle.claim_of("membership", direction, case["size"], tpr=0.5, fpr=0.05),
    ]
    uppers = [f for f in found(case["phases"], claims, case["records"]) if f.bound == "upper"]
    assert {f.quantity for f in uppers} == {"mu", "advantage", "tpr"}
    scope = data.draw(st.sampled_from(sorted({repr(f.scope) for f in uppers})))
    uppers = [f for f in uppers if repr(f.scope) == scope]
    planted, group = gradients_within(uppers[0], case, data.draw)
    absent, present = (
        oracle.laws_of(oracle.run_of(case["phases"], [], [], rows)) for rows in (planted, planted + group)
    )
    p, q = oracle.composed(list(zip(present, absent, strict=True)))
    pairs = [pair for way, pair in (("remove", (p, q)), ("add", (q, p))) if direction in (way, "both")]
    room = 1.0 + oracle.ROOM
    for finding in uppers:
        for one, other in pairs:
            if finding.quantity == "tpr":
                assert oracle.power(one, other, 0.05) <= finding.value * room
            elif finding.quantity == "advantage":
                assert oracle.delta(one, other, 0.0) <= finding.value * room
            else:
                for epsilon in (0.0, 0.3, 1.0, 3.0, 10.0):
                    allowed = float(gaussian.delta(epsilon, finding.value * room))
                    assert oracle.delta(one, other, epsilon) <= allowed * room + 1e-12
