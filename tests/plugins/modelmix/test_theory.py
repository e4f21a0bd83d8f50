"""Epsilon with mixing for Gaussian and Laplace noise."""

import itertools
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate
from support import specs
from support.modelmix_densities import FIGURE, log_density_of_sum, loss_of_pair, mixed

from dpspec.accounting import Discrete, PrivacyLoss
from dpspec.contract import Finding
from dpspec.contract.results import AuditResult
from dpspec_modelmix import theory
from dpspec_modelmix.attack import log_laplace_density
from dpspec_modelmix.options import Segment
from dpspec_modelmix.training import Absolute
from dpspec_papers import modelmix as printed_modelmix


@pytest.mark.parametrize(
    ("ratio", "p", "order", "epsilon"),
    [
        (0.075, 1, 2, 252.71147),
        (0.075, 25, 2, 17.858909),
        (0.075, 100, 3, 15.311976),
        (0.15, 1, 2, 133.56647),
        (0.15, 25, 4, 8.9818935),
        (0.15, 100, 4, 7.9183521),
        (0.3, 1, 2, 72.912117),
        (0.3, 25, 5, 5.4347000),
        (0.3, 100, 6, 4.8208127),
    ],
)
def test_figure_3_at_integer_orders(ratio: float, p: int, order: int, epsilon: float) -> None:
    found = theory.mixed_epsilon([FIGURE[ratio, p]], 1e-5)
    assert found.epsilon == pytest.approx(epsilon, rel=6e-8)
    assert found.order == order
    assert found.at_edge == (order == 2)


@pytest.mark.family
@pytest.mark.parametrize(("ratio", "epsilon"), [(0.075, 57.781126), (0.15, 40.418588), (0.3, 31.726001)])
def test_figure_3_at_fractional_orders(ratio: float, epsilon: float) -> None:
    found = theory.real_epsilon([FIGURE[ratio, 1]], 1e-5)
    assert found.epsilon == pytest.approx(epsilon, rel=6e-8)
    assert found.order == 1.5


def test_baselines() -> None:
    segment = FIGURE[0.3, 100]
    assert theory.gaussian_epsilon([segment], 1e-5).epsilon == pytest.approx(2536.0387, rel=6e-8)
    assert theory.real_epsilon(theory.without_mixing([segment]), 1e-5).epsilon == pytest.approx(198.76623, rel=6e-8)
    matched = [
        theory.gaussian_epsilon(theory.variance_matched([FIGURE[r, 1]]), 1e-5).epsilon for r in (0.075, 0.15, 0.3)
    ]
    assert matched == pytest.approx([8.74, 3.54, 1.65], abs=0.005)


def test_gaps_that_change_are_added_up_before_the_order_is_chosen() -> None:
    transfer = [mixed(1024 / 5e4, 500, 2.3733, r, 1024, 0.1) for r in (0.0075, 0.005, 0.0025)]
    found = theory.mixed_epsilon(transfer, 1e-5)
    assert (found.epsilon, found.order) == (pytest.approx(0.57894337, rel=6e-8), 38)
    assert theory.gaussian_epsilon(transfer, 1e-5).epsilon == pytest.approx(1.7867622, rel=6e-8)
    scatter = [mixed(8192 / 5e4, 350, 4.0, r, 8192, 1.0) for r in (0.05, 0.025)]
    assert theory.mixed_epsilon(scatter, 1e-5).epsilon == pytest.approx(1.0227255, rel=6e-8)
    assert theory.gaussian_epsilon(scatter, 1e-5).epsilon == pytest.approx(5.9891894, rel=6e-8)
    divergences = [float(theory.step_rdp((38,), s)[0]) for s in transfer]
    assert divergences == pytest.approx([9.7590747e-5, 1.4625429e-4, 2.9172140e-4], rel=6e-8)


def test_on_the_scale_of_the_sum_nothing_is_amplified() -> None:
    found = theory.mixed_epsilon([mixed(0.02, 5000, 0.3675, 0.3, 1.0, 20)], 1e-5)
    assert found.epsilon == pytest.approx(2534.0022, rel=6e-8)


def test_two_dimensions_by_direct_integration() -> None:
    q, s, t, order = 0.3, 1.5, 4.0, 3
    (formula,) = theory.step_rdp((order,), Segment(1, q, s, t, 2))
    (one_hot,) = theory.step_rdp((order,), Segment(1, q, s, t))
    assert formula == pytest.approx(0.631979676, rel=2e-9)
    assert one_hot == pytest.approx(0.900941555, rel=2e-9)
    o, w = theory.nodes(s, t, 3.0)
    p0 = np.exp(theory.log_density(o, t)) * w
    worst = []
    for degrees in (0, 9, 18, 27, 36, 45):
        angle = math.radians(degrees)
        first, second = (np.exp(theory.log_ratio(o, s * f(angle), t)) for f in (math.cos, math.sin))
        ratio = (1 - q) + q * first[:, None] * second[None, :]
        worst.append(math.log(float(p0 @ ratio**order @ p0)) / (order - 1))
    wanted = [0.9009415553, 0.8721110095, 0.7993310949, 0.7156942567, 0.6539987116, 0.6319796762]
    assert worst == pytest.approx(wanted, rel=2e-9)
    assert worst[0] == max(worst)


@pytest.mark.family
@pytest.mark.parametrize(("q", "s", "t", "order"), [(0.02, 2.72, 10.2, 2), (0.3, 0.5, 3.0, 1.5), (1.0, 1.0, 60.0, 4)])
def test_one_step_against_mpmath(q: float, s: float, t: float, order: float) -> None:
    with mp.workdps(20):

        def p0(o: mp.mpf) -> mp.mpf:
            return (mp.erfc((abs(o) - t / 2) / mp.sqrt(2)) - mp.erfc((abs(o) + t / 2) / mp.sqrt(2))) / (2 * t)

        def integrand(o: mp.mpf) -> mp.mpf:
            return p0(o) * ((1 - q) + q * p0(o - s) / p0(o)) ** order

        half = t / 2
        ends = [side * half + away for side in (-1, 1) for away in (-4, 0, 4)]
        ends += [-half - 11, half + 11, half + 11 + order * s]
        exact = float(mp.log(mp.quad(integrand, sorted(ends))) / (order - 1))
    (found,) = theory.real_step_rdp([order], Segment(1, q, s, t))
    assert found == pytest.approx(exact, rel=1e-9)
    if order == int(order):
        assert theory.step_rdp((int(order),), Segment(1, q, s, t))[0] == pytest.approx(exact, rel=1e-9)


def test_the_one_hot_gradient_is_the_worst_of_those_looked_at() -> None:
    for shift, width in itertools.product((0.1, 1.0, 2.7), (0.5, 10.0, 400.0)):
        assert theory.star_shape((2, 3, 8), shift, width) <= 1.0 + 1e-9


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="p = 1"):
        theory.real_step_rdp([1.5], Segment(1, 0.1, 1.0, 1.0, 4))
    with pytest.raises(ValueError, match="Gaussian"):
        theory.step_rdp((2,), segment(1, 1.0, 5.0))


ROOT_2 = math.sqrt(2.0)


def segment(steps: int, loss: float, width: float, rate: float = 1.0) -> Segment:
    """epsilon_0 and the width of the uniform, in scales of the noise."""
    return Segment(steps, rate, loss / ROOT_2, width / ROOT_2, noise="laplace")


def certified(steps: int, loss: float, width: float, rate: float = 1.0) -> PrivacyLoss:
    """The pair's privacy loss by another accountant, on cells of 0.02 scales near the ends of the uniform."""
    near = np.arange(-30.0, 30.0 + loss, 0.02)
    edges = np.unique(np.concatenate((near[near < width / 2], width + loss - near[near < width / 2 + loss])))
    middles, sizes = 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)
    absent, shifted = (sizes * np.exp(log_density_of_sum(middles - by, 1.0, width)) for by in (0.0, loss))
    present = (1.0 - rate) * absent + rate * shifted
    return PrivacyLoss.of(Discrete(present / present.sum(), absent / absent.sum())).compose(steps)


def test_laplace() -> None:
    one, as_printed = (
        theory.step_loss_moments(0.05, 200.0, math.log(200.0)),
        printed_modelmix.printed_moments(1.0, 0.05, 200.0),
    )
    assert as_printed is not None
    assert as_printed.mean == pytest.approx(1.4930004e-4, rel=6e-8)
    assert one.mean == pytest.approx(1.4930045e-4, rel=6e-8)
    assert one.second == pytest.approx(1.4559945e-4, rel=6e-8)
    assert theory.freedman_total([(1000, one)], 1e-5) == pytest.approx(2.1822067, rel=6e-8)
    assert printed_modelmix.advanced_composition(1000, 0.05, 1e-5) == pytest.approx(10.150690, rel=2e-7)
    large, printed = (
        theory.step_loss_moments(1.0, 100.0, math.log(100.0)),
        printed_modelmix.printed_moments(1.0, 1.0, 100.0),
    )
    assert (large.mean, large.second) == (pytest.approx(0.19270012, rel=6e-8), pytest.approx(0.11217796, rel=6e-8))
    assert printed is not None
    assert printed.mean == pytest.approx(0.19266874, rel=6e-8)
    assert printed_modelmix.printed_moments(1.0, 1.0, 3.0) is None


@pytest.mark.family
@pytest.mark.parametrize("cut", [0.3, 1.0, 3.0, 10.0, 24.0])
@pytest.mark.parametrize(("loss", "width"), [(0.05, 50.0), (1.0, 50.0), (3.0, 60.0)])
def test_any_cut_bounds_the_moments(loss: float, width: float, cut: float) -> None:
    if 2.0 * cut + loss >= width:
        with pytest.raises(ValueError, match="below the width"):
            theory.step_loss_moments(loss, width, cut)
        return
    bound = theory.step_loss_moments(loss, width, cut)

    def density(o: float) -> float:
        return float(log_density_of_sum(np.array([o]), 1.0, width)[0])

    knots = [-40.0, 0.0, loss, 8.0, width - 8.0, width, width + loss, width + 40.0]
    for power in (1, 2):
        parts = [
            integrate.quad(
                lambda o, n=power: math.exp(density(o)) * (density(o) - density(o - loss)) ** n, a, b, limit=200
            )[0]
            for a, b in itertools.pairwise(knots)
        ]
        assert math.fsum(parts) <= bound[power - 1]


@pytest.mark.family
@pytest.mark.parametrize(
    ("steps", "loss", "width", "rate"),
    [
        (1000, 0.05, 200.0, 1.0),
        (100, 0.3, 40.0, 1.0),
        (20, 1.0, 100.0, 1.0),
        (500, 0.5, 1e4, 1.0),
        (3, 2.0, 5.0, 1.0),
        (200, 0.5, 20.0, 0.1),
    ],
)
def test_the_total_lies_above_the_certified_epsilon_of_the_pair(steps, loss, width, rate):
    segments = [segment(steps, loss, width, rate)]
    exact = certified(steps, loss, width, rate).epsilon(1e-5)
    assert exact.upper <= theory.freedman_epsilon(segments, 1e-5) <= steps * loss * (1 + 1e-12)


def test_a_better_cut_and_the_printed_total() -> None:
    one = theory.step_loss_moments(0.05, 200.0, math.log(200.0))
    assert theory.freedman_epsilon([segment(1000, 0.05, 200.0)], 1e-5) == pytest.approx(1.62768, abs=5e-6)
    assert theory.freedman_total([(1000, one)], 1e-5) == pytest.approx(2.18221, abs=5e-6)
    # Freedman's linear term has epsilon_0, the printed one its square, which is too small below 1.
    assert printed_modelmix.printed_total(1000, one, 1e-5) == pytest.approx(1.99164, abs=5e-6)
    assert certified(1000, 0.05, 200.0).epsilon(1e-5).upper == pytest.approx(0.4838, abs=5e-5)


def test_segments_add_up_and_units_do_not_matter() -> None:
    halves = [segment(500, 0.05, 200.0), segment(500, 0.05, 200.0)]
    whole = theory.freedman_epsilon([segment(1000, 0.05, 200.0)], 1e-5)
    assert theory.freedman_epsilon(halves, 1e-5) == pytest.approx(whole, rel=1e-12)
    wider = [segment(500, 0.05, 200.0), segment(500, 0.05, 400.0)]
    assert theory.freedman_epsilon(wider, 1e-5) < whole
    # Without truncation the rest is epsilon_0 of every step.
    assert theory.freedman_epsilon([segment(10, 0.5, 0.4)], 1e-5) == pytest.approx(5.0)


def test_the_density_that_scores() -> None:
    o = np.linspace(-30.0, 30.0, 301)
    for width in (0.5, 7.0, 20.0):
        ours = log_laplace_density(torch.tensor(o), torch.full((301,), width, dtype=torch.float64)).numpy()
        assert ours == pytest.approx(log_density_of_sum(o + width / 2.0, 1.0, width), rel=1e-9, abs=1e-9)
    plain = log_laplace_density(torch.tensor(o), torch.zeros(301, dtype=torch.float64)).numpy()
    assert plain == pytest.approx(-np.abs(o) - math.log(2.0), rel=1e-12)


def test_clipping_to_an_l1_norm() -> None:
    rows = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    rows[3, 5] = math.inf
    clipped, lengths = Absolute()(rows, 20.0)
    norms = rows.double().abs().sum(1)
    assert torch.allclose(clipped[0].double(), rows[0].double() * min(1.0, 20.0 / float(norms[0])), rtol=1e-5)
    assert float(clipped.double().abs().sum(1).max()) <= 20.0
    assert float(lengths.max()) <= 20.0
    assert float(lengths[3]) == 0.0
    assert torch.all(clipped[3] == 0.0)
    assert int((norms > 20.0).sum()) > 10


TEXT = """\
dpspec: 1
name: laplace
mechanism:
  kind: modelmix
  noise: laplace
  noise_multiplier: 14.142135623730951
  clip_norm: 0.1
  mixing: {threshold: 2.0}
  sampling: {scheme: full}
  steps: 20
data: {kind: synthetic, records: 60, features: 10, classes: 4, seed: 2, split: {test: 0.2}}
model: {kind: linear}
training: {learning_rate: 0.5}
claims:
  - {id: mixed, kind: approx-dp, epsilon: 1.5, delta: 1e-5, min_records: 48}
  - {id: any-size, kind: approx-dp, epsilon: 1.5, delta: 1e-5, expect: supported}
  - {id: this, kind: approx-dp, epsilon: 1.5, delta: 1e-5, over: this}
audit: {method: one-run, canary: {space: gradient, kind: one-hot, count: 40}, twins: {}, seed: 3}
"""


def audit_of(tmp_path: Path, *overrides: str) -> AuditResult:
    return specs.audited(tmp_path, TEXT, *overrides)


@pytest.mark.ci
def test_an_audit_with_laplace_noise(tmp_path: Path) -> None:
    audit = audit_of(tmp_path)
    findings = [f for f in audit.findings if isinstance(f, Finding)]
    uppers = {f.method: f for f in findings if f.quantity == "epsilon" and f.bound == "upper" and f.at["delta"] == 1e-5}
    mixed = uppers["Freedman, corrected Lemma D.2, any cut"]
    # 48 records at 2.0 learning rates: a gap of 96 scales, which are 1; epsilon_0 is 0.1.
    assert mixed.value == pytest.approx(theory.freedman_epsilon([segment(20, 0.1, 96.0)], 1e-5), rel=1e-12)
    assert not {a.status for a in mixed.assumptions} & {"unchecked", "false"}
    assert uppers["without mixing, pld/connect-the-dots"].value > mixed.value
    # A dataset of 24 records has half the divisor, and so half the gap.
    assert [v.verdict for v in audit.verdicts] == ["proved", "supported", "proved"]
    scopes = {(f.scope.data, f.scope.min_records) for f in findings if f.method == mixed.method}
    assert scopes == {("all", 48), ("this", 0)}
    (lower,) = [f for f in findings if f.quantity == "epsilon" and f.bound == "lower"]
    assert lower.value <= mixed.value
    assert {f.quantity for f in findings} >= {"amplification", "epsilon-without-mixing"}
    printed = [f for f in findings if f.printed is not None]
    assert [f.method for f in printed] == ["Lemma D.2 and its total, in units of the spec"]
    assert all(f.printed is not None and f.printed.refuted for f in printed)
    assert audit.conformance.status == "no-deviation-found"


@pytest.mark.ci
def test_what_laplace_noise_loses_falls_back_to_plain_noise(tmp_path: Path) -> None:
    audit = audit_of(tmp_path, "mechanism.mixing={threshold: 2.0, weights: shared}", "claims.mixed.expect=open")
    methods = {f.method for f in audit.findings if f.bound == "upper" and f.quantity == "epsilon"}
    assert all(method.startswith("without mixing, pld") for method in methods)
    (claimed,) = [f for f in audit.findings if f.method == "Lemma D.2 as if all conditions held"]
    assert claimed.printed is not None
    assert claimed.printed.refuted


def test_a_step_that_loses_out_of_range_adds_up() -> None:
    for effect in (10.0, 250.0, 1e6):
        segments = [Segment(3, 1.0, effect, 4.0 * effect, noise="laplace")]
        total = 3 * math.sqrt(2.0) * effect
        assert theory.freedman_epsilon(segments, 1e-5) == pytest.approx(total)
        (interval,) = theory.plain_epsilons(segments, [1e-5])
        assert 0.9 * total <= interval.upper <= 1.01 * total
    # The printed formula has a value where the corrected exponent is out of range.
    printed, corrected = (
        printed_modelmix.printed_moments(1.0 / 12.0, 1.0, 2.0),
        theory.step_loss_moments(12.0, 24.0, math.log(2.0)),
    )
    assert printed is not None
    assert math.isfinite(printed.mean)
    assert corrected.mean > printed.mean > 0.0


@pytest.mark.family
@pytest.mark.parametrize(
    ("q", "s", "t", "p"),
    [
        *itertools.product((0.02, 0.2, 1.0), (0.4, 1.5), (0.0, 3.0, 40.0), (1,)),
        *((1.0, 1.5, t, 9) for t in (3.0, 40.0)),
    ],
)
def test_the_truth_lies_at_or_below_the_bound_in_many_settings(q: float, s: float, t: float, p: int) -> None:
    segment = Segment(20, q, s, t, p)
    bound, improved = (theory.mixed_epsilon([segment], 1e-5, how).epsilon for how in ("mironov", "improved"))
    assert loss_of_pair(segment).epsilon(1e-5).upper <= improved * (1 + 1e-6)
    assert improved <= bound * (1 + 1e-9)


@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0, 47.0, 200.0, 1e6])
def test_densities_integrate_to_one(width: float) -> None:
    o, w = theory.nodes(1.0, width, 1.0)
    mass = float(w @ np.exp(theory.log_density(o, width)))
    dropped = max(0.0, width - 1.0 - 24.0) / width if width > 50.0 else 0.0
    assert mass + dropped == pytest.approx(1.0, abs=1e-8)


def test_bounds_rise_relative_to_the_shift() -> None:
    """A gradient of l1 norm c has no larger sum than the one-hot gradient, which the total assumes."""
    for width, cut in itertools.product((5.0, 50.0, 500.0), (0.2, 1.0)):
        rows = [theory.step_loss_moments(v, width, cut) for v in np.linspace(0.01, 2.0, 100)]
        for which in (0, 1):
            relative = [row[which] / row.largest for row in rows]
            assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(relative))


@pytest.mark.parametrize(("ratio", "p", "value"), [(0.075, 25, 13.944933), (0.075, 100, 12.829683), (0.3, 100, 3.932)])
def test_the_truth_of_figure_3_lies_below_the_bound(ratio: float, p: int, value: float) -> None:
    """Epsilon of the pair by inverting transforms at 25 digits (mpmath)."""
    assert value < theory.mixed_epsilon([FIGURE[ratio, p]], 1e-5).epsilon
