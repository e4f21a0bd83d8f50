"""The scope oracle: no bound on reconstruction is exceeded by explicit neighbours in its scope."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support import scope_oracle as oracle

from dpspec.contract import Finding, Phase
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import parts_of, tensors
from dpspec_rero import ReroAudit, theory
from dpspec_rero import findings as bounds_of_gamma
from dpspec_rero.attack import AbsoluteSum
from dpspec_rero.options import trained_phases

FEATURES = (0.0, 1e-6, 0.5, -1.0, 3.0, -40.0, 1e4, 1e30, float("nan"))


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Any:
    """Curves at other baselines take time and add nothing; wider intervals are no less certified."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds_of_gamma, "CURVE", ())
        patch.setattr(theory, "WIDTH", 1e-3)
        yield


@st.composite
def mechanisms(draw: st.DrawFn, noises: tuple[str, ...] = ("gaussian", "laplace")) -> dict[str, Any]:
    """One step of a query or of clipped gradients; phases of one step make more."""
    noise = draw(st.sampled_from(noises))
    rate = draw(st.sampled_from((0.05, 0.3, 0.7, 1.0)))
    sampling = {"scheme": "full"} if rate == 1.0 else {"scheme": "poisson", "rate": rate}
    size = draw(st.sampled_from((0.5, 1.0, 3.0)))
    bound = draw(st.sampled_from((0.1, 1.0, 20.0)))
    if noise == "laplace" or draw(st.booleans()):
        norm = {"gaussian": "l2", "laplace": "l1"}[noise]
        how: dict[str, Any] = {"scale": size * bound, "sensitivity": {norm: bound}}
    else:
        how = {"noise_multiplier": size, "clip_norm": bound}
    return {"noise": noise, "sampling": sampling, "steps": draw(st.sampled_from((1, 1, 1, 2))), **how}


def findings_of(
    mechanism: dict[str, Any], at: float, kappa: float, direction: str, baselines: tuple[str, ...] = ()
) -> list[Finding]:
    claims = [
        oracle.claim_of("approx-dp", direction, epsilon=1.0, delta=at),
        oracle.claim_of("membership", direction, tpr=0.5, fpr=at),
        oracle.claim_of("rero", kappa=kappa, gamma=0.5),
    ]
    spec = oracle.spec_of("rero", {**mechanism, "baselines": baselines}, claims)
    found = oracle.remembered_findings_of(ReroAudit(), spec, 6)
    return [f for f in found if f.bound != "estimate" and f.rigor in ("certified", "theorem")]


def laws_of(mechanism: dict[str, Any], x: list[float], y: list[int]) -> list[oracle.Law]:
    """The distributions of the steps at the first model: by the plugin's phases and its clipping for Laplace noise."""
    job = oracle.run_of(trained_phases([Phase(mechanism)]), x, y)
    parts = parts_of(job)
    if mechanism["noise"] == "laplace":
        rows = tensors(job.x, job.y, job.device)
        parts = dataclasses.replace(parts, contributions=AbsoluteSum(FlatModel(job.model), *rows))
    return [oracle.law_of(parts, phase, parts.initial) for phase in parts.schedule]


def check_membership(data: st.DataObject) -> None:
    mechanism, direction = data.draw(mechanisms()), data.draw(st.sampled_from(("add", "remove", "both")))
    at, worst = data.draw(st.sampled_from((0.3, 0.03, 1e-3))), data.draw(st.booleans())
    known = data.draw(st.integers(0, 3))
    x = data.draw(st.lists(st.sampled_from(FEATURES), min_size=known + 1, max_size=known + 1))
    y = data.draw(st.lists(st.integers(0, 1), min_size=known + 1, max_size=known + 1))
    if worst:
        x = [0.0] * known + [1e4]
    hold_within(mechanism, at, direction, x, y, worst=worst)


def hold_within(
    mechanism: dict[str, Any], at: float, direction: str, x: list[float], y: list[int], *, worst: bool
) -> None:
    """Compare findings with the last record; ``worst``: whether it attains the lower ends."""
    steps = int(mechanism["steps"])
    absent, present = laws_of(mechanism, x[:-1], y[:-1]), laws_of(mechanism, x, y)
    room = {1: 2e-3, 2: 0.03}[steps]
    for finding in findings_of(mechanism, at, 0.1, direction):
        if finding.quantity not in ("epsilon", "tpr", "advantage"):
            continue
        stated = float(finding.at["delta"]) if finding.quantity == "epsilon" else finding.value
        shown = shown_of(finding, absent, present)
        if finding.bound == "upper":
            if shown > stated:  # relative rounding of float32 sums, and so of epsilon
                shown = shown_of(finding, absent, present, more=2.0**-20 * (1.0 + abs(finding.value)))
            assert shown <= stated * (1.0 + oracle.ROOM) + 1e-9, finding
        elif worst and not (finding.quantity == "epsilon" and stated == 0.0):
            least = stated * (1.0 - room) - 1e-9
            if shown < least:  # where a law has a kink, a cell holds both sides of it
                shown = shown_of(finding, absent, present, finer=10 if steps == 1 else 3)
            assert shown >= least, finding


def shown_of(
    finding: Finding, absent: list[oracle.Law], present: list[oracle.Law], *, more: float = 0.0, finer: int = 1
) -> float:
    """The leakage of two datasets in the quantity of a finding; for epsilon, delta at epsilon plus ``more``."""
    pairs = [oracle.composed(some, finer) for some in oracle.sides(finding.scope.direction, absent, present)]
    if finding.quantity == "epsilon":
        return max(oracle.delta(*pair, finding.value + more) for pair in pairs)
    if finding.quantity == "tpr":
        # The test asks whether the record is there, or is not: its level is the mass of the other law.
        return max(oracle.power(*pair, float(finding.at["fpr"])) for pair in pairs)
    return oracle.delta(*pairs[0], 0.0)


#: Integer weights of the candidates.
PRIORS = st.lists(st.integers(1, 5), min_size=2, max_size=4)


def check_reconstruction(data: st.DataObject) -> None:
    """The best guess at the target among a few candidates, one step, against gamma at the prior's kappa."""
    mechanism = {**data.draw(mechanisms()), "steps": 1}
    masses = np.array(data.draw(PRIORS), dtype=float)
    masses /= masses.sum()
    count, known = len(masses), data.draw(st.integers(0, 2))
    x = data.draw(st.lists(st.sampled_from(FEATURES), min_size=known + count, max_size=known + count))
    y = data.draw(st.lists(st.integers(0, 1), min_size=known + count, max_size=known + count))
    laws = [laws_of(mechanism, [*x[:known], x[known + i]], [*y[:known], y[known + i]])[0] for i in range(count)]
    means = np.concatenate([law.means for law in laws])
    reach = 14.0 * laws[0].deviation
    edges = np.linspace(means.min() - reach, means.max() + reach, oracle.CELLS)
    success = float(np.max([m * law.masses(edges) for m, law in zip(masses, laws, strict=True)], axis=0).sum())
    kappa = float(masses.max())
    for finding in findings_of(mechanism, 1e-3, kappa, "both", ("rdp", "epsilon-delta")):
        if finding.quantity == "gamma" and finding.bound == "upper":
            assert success <= finding.value * (1.0 + oracle.ROOM), finding


def test_a_lower_end_near_the_largest_loss_is_attained() -> None:
    laplace = {"noise": "laplace", "scale": 0.05, "sensitivity": {"l1": 0.1}}
    mechanism = {**laplace, "sampling": {"scheme": "poisson", "rate": 0.3}, "steps": 1}
    hold_within(mechanism, 1e-3, "add", [1e4], [0], worst=True)


def test_a_pure_bound_holds_but_for_the_rounding_of_sums() -> None:
    laplace = {"noise": "laplace", "scale": 0.5, "sensitivity": {"l1": 1.0}}
    mechanism = {**laplace, "sampling": {"scheme": "poisson", "rate": 0.3}, "steps": 1}
    hold_within(mechanism, 0.3, "add", [3.0, 1e4], [0, 0], worst=False)


test_no_pair_of_data_sets_leaks_more = oracle.few(check_membership)
test_no_prior_is_guessed_more_often = oracle.few(check_reconstruction)
test_ten_thousand_pairs = oracle.many(check_membership)
test_ten_thousand_priors = oracle.many(check_reconstruction)
