"""Discrete Gaussian noise in specs: the bound of the Gaussian that dominates it, no lower end, and refusals."""

from pathlib import Path

import pytest
from support.attacks import audited, errors

from dpspec.accounting import PrivacyLoss
from dpspec.accounting.discrete_noise import dominating_noise_multiplier

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

TEXT = """\
dpspec: 1
name: integers
mechanism:
  kind: group
  noise: discrete-gaussian
  noise_multiplier: 2.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 9
data: {kind: declared, records: 100, features: 4, classes: 2}
claims:
  - {id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}
  - {id: low, kind: approx-dp, epsilon: 0.1, delta: 1e-5, expect: open}
"""

TRAINED = """\
dpspec: 1
name: integers
mechanism:
  {kind: group, noise: discrete-gaussian, noise_multiplier: 2.0, clip_norm: 0.5, sampling: {scheme: full}, steps: 6}
data: {kind: synthetic, records: 20, features: 10, classes: 4, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
claims: [{id: one, kind: approx-dp, epsilon: 90.0, delta: 1e-5}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 30}, seed: 11}
"""


def test_the_bound_is_the_gaussians_without_a_lower_end(tmp_path: Path) -> None:
    audit = audited(tmp_path, text=TEXT)
    one, low = audit.verdicts
    exact = PrivacyLoss.gaussian(dominating_noise_multiplier(2.0), rate=0.1).compose(9).epsilon(1e-5)
    assert one.upper == pytest.approx(exact.upper, rel=1e-4)
    assert one.upper >= exact.lower
    assert (one.verdict, low.verdict, low.lower) == ("proved", "open", None)
    assert not any(finding.bound == "lower" or finding.lower for finding in audit.findings)
    gaussian = audited(tmp_path, "mechanism.noise=gaussian", "claims.low.expect=refuted", text=TEXT)
    assert (gaussian.verdicts[1].verdict, gaussian.verdicts[0].upper) == ("refuted", pytest.approx(one.upper, rel=1e-4))
    texts = [{a.name: a.text for a in of.findings[0].assumptions}["exact-arithmetic"] for of in (audit, gaussian)]
    assert [text.split()[0] for text in texts] == ["contributions", "noise"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mechanism.clipping={scheme: adaptive, count_std: 5}", "fixed clip norm"),
        ("mechanism.noise_multiplier=0.001", "between 0.01 and 1000"),
        ("mechanism.noise_multiplier=2000", "between 0.01 and 1000"),
    ],
)
def test_refusals(override: str, message: str, tmp_path: Path) -> None:
    assert any(message in error for error in errors(tmp_path, override, text=TEXT))
    assert not errors(tmp_path, text=TEXT)


@pytest.mark.recorder
def test_a_recorded_run_is_refused(tmp_path: Path) -> None:
    found = errors(tmp_path, "training={backend: recorded, run: run}", text=TEXT)
    assert any("does not train with discrete Gaussian noise" in error for error in found)


def test_other_backends_and_mixed_phases_are_refused(tmp_path: Path) -> None:
    for text in (TRAINED, TEXT):
        found = errors(tmp_path, "training={backend: opacus}", text=text)
        assert any("does not train with discrete Gaussian noise" in error for error in found)
    phases = "mechanism.phases=[{steps: 3}, {steps: 3, noise: gaussian}]"
    text = TEXT.replace("  steps: 9\n", "")
    assert any("different noise" in error for error in errors(tmp_path, phases, text=text))


@pytest.mark.ci
def test_a_training_conforms_and_is_attacked(tmp_path: Path) -> None:
    audit = audited(tmp_path, text=TRAINED)
    assert audit.conformance.status == "no-deviation-found"
    assert [verdict.verdict for verdict in audit.verdicts] == ["proved"]
    assert any(finding.bound == "lower" and finding.rigor == "statistical" for finding in audit.findings)
