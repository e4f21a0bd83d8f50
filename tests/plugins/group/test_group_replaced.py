"""Replaced records in specs: verdicts, scopes and refusals of each scheme, by closed forms and single pairs."""

import math
from pathlib import Path

import pytest
from support.attacks import audited, errors

from dpspec.accounting import DoubleMixture, PrivacyLoss, gaussian
from dpspec.contract import Phase
from dpspec_group import theory

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

TEXT = """\
dpspec: 1
name: replaced
mechanism: {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 9}
data: {kind: declared, records: 100, features: 4, classes: 2}
threat_model: {adjacency: replace-one, group_size: [1, 2], min_records: 100}
claims:
  - {id: one, kind: approx-dp, epsilon: 40.0, delta: 1e-5}
  - {id: two, kind: approx-dp, epsilon: 90.0, delta: 1e-5, group_size: 2}
  - {id: low, kind: approx-dp, epsilon: 0.3, delta: 1e-5, expect: refuted}
  - {id: removed, kind: approx-dp, epsilon: 40.0, delta: 1e-5, direction: remove}
"""
FULL, FIXED = "mechanism.sampling={scheme: full}", "mechanism.sampling={scheme: fixed, batch_size: 10}"
SHUFFLED = "mechanism.sampling={scheme: shuffled, batch_size: 30}"


@pytest.mark.family
@pytest.mark.parametrize(("sampling", "least"), [("mechanism.steps=9", 0), (FULL, 0), (FIXED, 100), (SHUFFLED, 100)])
def test_each_scheme_is_proved_and_refuted_in_its_scope(sampling: str, least: int, tmp_path: Path) -> None:
    audit = audited(tmp_path, sampling, text=TEXT)
    assert [v.verdict for v in audit.verdicts] == ["proved", "proved", "refuted", "proved"]
    assert {f.scope.adjacency for f in audit.findings} == {"replace-one"}
    assert {f.scope.min_records for f in audit.findings if f.bound == "upper" and f.scope.data == "all"} == {least}
    one, two, _, removed = audit.verdicts
    assert one.upper == removed.upper  # replacing back is replacing
    assert one.upper is not None
    assert two.upper is not None
    assert one.upper < two.upper
    exact = {
        "mechanism.steps=9": PrivacyLoss.of(DoubleMixture.poisson(1, 1, 0.1, 2.0)).compose(9).epsilon(1e-5).upper,
        FULL: float(gaussian.epsilon(1e-5, 3.0)),
        SHUFFLED: float(gaussian.epsilon(1e-5, math.sqrt(3.0))),  # three epochs of four batches
    }
    if sampling in exact:
        assert one.upper == pytest.approx(exact[sampling], rel=1e-6)


@pytest.mark.family
@pytest.mark.parametrize("scheme", ["poisson", "full", "fixed", "shuffled"])
def test_replacing_costs_at_least_as_much_as_a_null_record_and_at_most_two_removals(scheme: str) -> None:
    options = {"poisson": {"rate": 0.2}, "fixed": {"batch_size": 20}, "shuffled": {"batch_size": 20}}
    block = {"scheme": scheme, **options.get(scheme, {})}
    phase = Phase({"steps": 20, "noise_multiplier": 1.5, "clip_norm": 1.0, "sampling": block})
    for size in (1, 3):
        (found,) = theory.group_epsilons([phase.replace(replaced=True)], size, 100, [1e-5], "both")
        (null,) = theory.group_epsilons([phase], size, 100, [1e-5], "both")
        (twice,) = theory.group_epsilons([phase.replace(noise_multiplier=0.75)], size, 100, [1e-5], "both")
        assert found.lower <= found.upper
        assert scheme == "fixed" or null.lower <= found.upper * (1.0 + 1e-9)
        assert found.lower <= twice.upper


@pytest.mark.parametrize("scheme", ["poisson", "full"])
def test_a_phase_that_reveals_nothing_leaves_the_attained_lower_end_of_fixed_batches(scheme: str) -> None:
    """No data is known to attain the pair that dominates fixed batches, alone or with another phase."""
    fixed = {"scheme": "fixed", "batch_size": 20}
    other = {"scheme": scheme, **({"rate": 0.2} if scheme == "poisson" else {})}
    first, quiet = (
        Phase({"steps": 20, "noise_multiplier": noise, "clip_norm": 1.0, "sampling": block, "replaced": True})
        for noise, block in ((1.5, fixed), (1e5, other))
    )
    (alone,) = theory.group_epsilons([first], 2, 100, [1e-5], "remove")
    (mixed,) = theory.group_epsilons([first, quiet], 2, 100, [1e-5], "remove")
    assert mixed.lower <= 1.001 * alone.lower < 0.99 * alone.upper
    assert mixed.upper == pytest.approx(alone.upper, rel=1e-3)


def test_mu_rho_and_renyi_divergence_are_those_of_two_clip_norms() -> None:
    block = {"scheme": "poisson", "rate": 0.1}
    phases = [Phase({"steps": 9, "noise_multiplier": 2.0, "clip_norm": 1.0, "sampling": block, "replaced": True})]
    assert theory.mu_of_all_steps(phases, 1, 100) == pytest.approx(3.0)
    rho = theory.rho_interval(phases, 1, 100, "add")
    assert rho.lower <= 4.5 <= rho.upper
    assert theory.rdp_interval(phases, 1, 100, 2.0, "both").upper == pytest.approx(9.0)
    tpr = theory.tpr_interval(phases, 1, 100, 0.01, "both")
    assert 0.01 < tpr.lower <= tpr.upper < 0.2


@pytest.mark.parametrize("noise", [0.05, 0.2, 1e-150])
def test_little_noise_keeps_its_lower_end(noise: float) -> None:
    block = {"scheme": "poisson", "rate": 0.1}
    phase = Phase({"steps": 9, "noise_multiplier": noise, "clip_norm": 1.0, "sampling": block, "replaced": True})
    (found,) = theory.group_epsilons([phase], 1, 100, [1e-5], "remove")
    assert found.lower > 30.0
    assert found.upper == math.inf or found.relative_width < 0.02


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), None),
        ((FIXED,), None),
        (("claims.one.adjacency=add-remove",), "a spec of replaced records covers replace-one adjacency only"),
        (("mechanism.sampling={scheme: truncated-poisson, rate: 0.1, max_batch: 20}",), "truncated-poisson batches"),
        (
            ("mechanism.sampling={scheme: random-allocation, epoch_steps: 3}",),
            "no theorem here covers replaced records in random-allocation batches",
        ),
        (("mechanism.baselines=[vadhan-sharp]",), "replaced records have a pair of two mixtures"),
        (
            (
                "mechanism.phases=[{steps: 4}, {steps: 4, sampling: {scheme: shuffled, batch_size: 10}}]",
                "mechanism.steps=null",
            ),
            "shuffled batches in all phases",
        ),
    ],
)
def test_what_is_not_covered_is_refused(overrides: tuple[str, ...], words: str | None, tmp_path: Path) -> None:
    found = errors(tmp_path, *overrides, text=TEXT)
    assert any(words in message for message in found) if words else found == []
