"""Conformance of a run: the promised checks, and the estimated epsilon of the executed run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.attacks import attacked, outcomes_of, trials_of
from support.attacks import audited as audited_at

from dpspec.contract import Check, Finding, FrozenMap, Trial, thaw
from dpspec.contract.findings import AS_RUN
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.reporters import words
from dpspec_group import GroupAudit, theory

#: Assumption, observer and note.
Name: TypeAlias = tuple[str, str, str]

#: Steep features and a small clip norm: every gradient is as long as the clip norm, as the plan takes them to be.
STEEP = (
    "mechanism.noise_multiplier=1.5",
    "mechanism.clip_norm=0.001",
    "mechanism.sampling.rate=0.1",
    "mechanism.steps=300",
    "data={kind: synthetic, records: 400, features: 100, classes: 10, seed: 2}",
    "threat_model={group_size: [1], access: final-model}",
    "claims=[{id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}]",
    "audit.canary.count=300",
)


def planned_and_made(tmp_path: Path, *overrides: str) -> tuple[dict[Name, Check], dict[Name, Check]]:
    spec = attacked(tmp_path, *STEEP, *overrides)
    planned = prepare(spec, load_catalog()).plan().checks
    return by_name(planned), by_name(outcomes_of(spec, trials_of(spec, 0)))


def by_name(outcomes: Iterable[object]) -> dict[Name, Check]:
    """All checks except those that no plan promises: products of layers, and the step on a neighbor."""
    checks = [c for c in outcomes if isinstance(c, Check) and c.note != "between any two layers"]
    return {(c.assumption, c.observed, c.note): c for c in checks if c.assumption != "data-independent-hyperparameters"}


@pytest.mark.ci
def test_the_plan_of_a_final_model_audit_predicts_the_checks_of_few_observations(tmp_path: Path) -> None:
    planned, made = planned_and_made(tmp_path)
    assert set(planned) == set(made)
    for name, check in planned.items():
        if name[0] == "update" or name[2].startswith("at every lag"):
            continue  # seen only afterwards: the gradients, and which lag is the worst
        seen = made[name].detectable
        # The length of the gradients at the worst step is known only afterwards.
        near = 0.2 if name[2] == "at each step" else 0.1
        assert check.detectable == (None if seen is None else pytest.approx(seen, rel=near)), name


def test_updates_that_cannot_be_inverted_leave_the_count_of_states_alone(tmp_path: Path) -> None:
    planned, made = planned_and_made(tmp_path, "training.optimizer={kind: adam}", "mechanism.steps=3")
    assert set(planned) == set(made)
    assert {check.assumption for check in planned.values() if check.observed == "measured"} == {"steps"}


SPEC = """\
dpspec: 1
name: as-run
mechanism: {kind: group, noise_multiplier: 4.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.5}, steps: 20}
data: {kind: synthetic, pattern: blobs, records: 200, features: 40, classes: 10, public: true}
model: {kind: mlp, hidden: [100]}
training: {backend: native, learning_rate: 0.5}
threat_model: {group_size: [1, 4]}
claims:
  - {id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}
  - {id: four, kind: approx-dp, epsilon: 60.0, delta: 1e-5, group_size: 4}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 2000}, seed: 3}
"""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, AuditResult]:
    folder = tmp_path_factory.mktemp("as-run")
    return attacked(folder, text=SPEC), audited_at(folder, text=SPEC)


def trials(audit: AuditResult) -> list[Trial]:
    return [Trial(index=record.index, evidence=record.evidence) for record in audit.trials]


def worst(spec: Any, size: int, noise: float) -> float:
    phases = [phase.replace(noise_multiplier=noise * phase.noise_multiplier) for phase in spec.phases]
    return max(theory.group_epsilons(phases, size, 200, [1e-5], way)[0].upper for way in ("remove", "add"))


@pytest.mark.ci
def test_the_truth_lies_between_the_ends(audited: tuple[Any, AuditResult]) -> None:
    spec, audit = audited
    found = [one for one in audit.findings if one.quantity == AS_RUN]
    assert len(found) == 4
    for one in found:
        truth = worst(spec, one.at["group_size"], 1.0)
        assert one.lower <= truth <= one.value
        outside = one.method.startswith("noise and sensitivity measured on released")
        assert one.lower >= (0.75 if outside else 0.95) * truth
        assert (one.bound, one.rigor, one.confidence) == ("estimate", "approximate", 0.95)
        assert [held.name for held in one.assumptions] == ["sampled-gaussian-steps"]


def test_both_ends_move_when_a_tenth_of_the_noise_is_missing(audited: tuple[Any, AuditResult]) -> None:
    """All recorded sums of squared noise shrink by 0.81; the estimate is the accountant's value at that noise."""
    spec, audit = audited
    less = []
    for trial in trials(audit):
        kept: Any = thaw(trial.evidence)
        for sums in (kept["noise_log"], kept["internal"]["noise"]):
            sums["statistic"] *= 0.81
        less.append(replace(trial, evidence=FrozenMap(kept)))
    before = [one for one in audit.findings if one.quantity == AS_RUN]
    after = [one for one in GroupAudit().conclude(spec, less) if isinstance(one, Finding) and one.quantity == AS_RUN]
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert other.lower > 1.05 * one.lower
        assert other.value > 1.05 * one.value
        assert other.lower <= worst(spec, one.at["group_size"], 0.9) <= other.value


@pytest.mark.ci
def test_reports_show_it_and_name_unmeasured_quantities(audited: tuple[Any, AuditResult], tmp_path: Path) -> None:
    *estimates, decides_nothing = words.as_run(audited[1])
    assert [one.startswith("Estimated epsilon of the executed run (") for one in estimates] == [True] * 2
    assert all(one.count(" at ") == 2 for one in estimates)  # of two sizes
    assert "No claim depends on these estimates." in decides_nothing
    assert "may violate this assumption" not in decides_nothing
    status = replace(audited[1].conformance, status="deviates")
    deviating = words.as_run(replace(audited[1], conformance=status))
    assert deviating[-1].endswith("The run deviates and may violate this assumption.")
    said = words.as_run(audited_at(tmp_path, "audit.canary={space: input, count: 80}", text=SPEC))
    assert len(said) == 3  # one that is not given, both sizes as reported, and the assumption
    assert any("not available; missing: contribution (too few gradient canaries, or none)" in one for one in said)
