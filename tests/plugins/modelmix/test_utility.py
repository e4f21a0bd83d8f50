"""The utility theorems: constants against reference values, and what a spec shows of them."""

import math
from pathlib import Path

import pytest
from support import specs

from dpspec.contract import Finding
from dpspec_modelmix import utility


def test_utility_constants() -> None:
    bias = utility.clipping_bias(12.0, 1.0)
    assert tuple(bias.values()) == pytest.approx((0.47510647, 0.043924944, 1.3029810), rel=6e-8)
    c = 4.0 * math.log(10.0)
    assert tuple(utility.clipping_bias(c, 1.0).values()) == pytest.approx((0.45, 0.13465516, c / 20.0), rel=6e-8)


def test_rederived_utility_theorems() -> None:
    case = utility.NonConvex(
        dimension=100,
        records=10_000,
        rate=0.1,
        clip_norm=2.0,
        epsilon=1.0,
        delta=1e-5,
        smoothness=1.0,
        span=1.0,
        noise=4.0,
    )
    leak = 100.0 * math.log(1e5)
    unit = 2.0 * math.sqrt(leak) / 1e4
    assert case.dpsgd() == pytest.approx((15.0 + 1.0 + 0.05) * unit)
    assert case.dpsgd(printed=True) == pytest.approx(4.5 * unit)
    assert case.modelmix(0.0) == pytest.approx((20.0 + 1.0 + 0.05) * unit * math.sqrt(101 / 12))
    # The second term with its root put back is smaller by sqrt(d ln(1 / delta)).
    ours, theirs = (case.modelmix(12.0, printed=p) - case.modelmix(0.0, printed=p) for p in (False, True))
    assert theirs / ours == pytest.approx(math.sqrt(leak))


# The setting of the reference value of Theorem 3.1: d = 10, n = 1000, q = 0.1, T = 100, tau = 0.01, L = 1, gamma = 0.5,
# E||noise||^2 = 40, so noise_multiplier 2 and a learning rate of gamma / sqrt(T) on the mean.
TEXT = """\
dpspec: 1
name: useful
mechanism:
  kind: modelmix
  noise_multiplier: 2.0
  clip_norm: 1.0
  mixing: {threshold: 0.01, relative_to: absolute}
  sampling: {scheme: poisson, rate: 0.1}
  steps: 100
  utility: {smoothness: 1.0, distance: 1.0, span: 2.0, tail: 0.05}
data: {kind: declared, records: 1000, features: 4, classes: 2}
model: {kind: linear}
training: {learning_rate: 0.05}
claims:
  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
"""


def findings_of(tmp_path: Path, *overrides: str) -> list[Finding]:
    return [f for f in specs.audited(tmp_path, TEXT, *overrides).findings if isinstance(f, Finding)]


def test_a_spec_shows_them(tmp_path: Path) -> None:
    found = findings_of(tmp_path)
    (risk,) = [f for f in found if f.quantity == "excess-risk"]
    assert risk.value == pytest.approx(5.6698603, rel=6e-8)
    assert (risk.bound, risk.rigor) == ("upper", "theorem")
    assert {a.name: a.status for a in risk.assumptions}["moved-models"] == "unchecked"
    bias = {f.quantity.removeprefix("clipping-"): f.value for f in found if f.quantity.startswith("clipping-")}
    assert bias == pytest.approx(utility.clipping_bias(1.0, 0.05))
    for quantity, ours, theirs in (
        ("mean-gradient", 8.63315, 1.20996),
        ("mean-gradient-without-mixing", 2.26277, 0.35384),
    ):
        rederived, printed = [f for f in found if f.quantity == quantity]
        assert (rederived.value, printed.value) == (pytest.approx(ours, rel=2e-5), pytest.approx(theirs, rel=2e-5))
        assert rederived.printed is None
        assert printed.printed is not None
        assert printed.printed.refuted
        assert {a.name: a.status for a in rederived.assumptions}["clip-above-tail"] == "declared"


def test_what_the_clip_norm_has_to_be(tmp_path: Path) -> None:
    found = findings_of(tmp_path, "mechanism.utility={smoothness: 1.0, span: 2.0, tail: 1.0}")
    statuses = [a.status for f in found if f.bound == "upper" for a in f.assumptions if a.name == "clip-above-tail"]
    assert statuses == ["false", "false"]
    found = findings_of(tmp_path, "mechanism.utility={smoothness: 1.0, span: 2.0}")
    statuses = [a.status for f in found if f.bound == "upper" for a in f.assumptions if a.name == "clip-above-tail"]
    assert statuses == ["unchecked", "unchecked"]


def test_literal_enforcement_costs_more_than_printed(tmp_path: Path) -> None:
    literal = findings_of(tmp_path, "mechanism.mixing.enforcement=literal")
    ours, printed = [f for f in literal if f.quantity == "excess-risk"]
    assert ours.value > printed.value
    assert printed.printed is not None
    assert printed.printed.refuted
