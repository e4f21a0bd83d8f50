"""The estimated epsilon of the executed run: near the truth, moved by missing noise, used by no verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.attacks import attacked, written
from support.attacks import audited as audited_at

import dpspec
from dpspec.contract import Finding, FrozenMap, Trial, thaw
from dpspec.contract.findings import AS_RUN
from dpspec.engine.judging.judge import judge
from dpspec.engine.judging.judge_input import Concluded
from dpspec.engine.results.result import AuditResult
from dpspec.reporters import phrases
from dpspec.reporters.formats import markdown, terminal
from dpspec_group import theory
from dpspec_group.mechanism import GroupAudit

SPEC = """\
dpspec: 1
name: as-run
mechanism:
  kind: group
  noise_multiplier: 4.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.5}
  steps: 20
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


def estimates(audit: AuditResult) -> dict[tuple[str, int], Finding]:
    found = [one for one in audit.findings if one.quantity == AS_RUN]
    return {(one.method.partition(" ")[0], one.at["group_size"]): one for one in found}


def trials(audit: AuditResult) -> list[Trial]:
    return [Trial(index=record.index, evidence=record.evidence) for record in audit.trials]


def worst(spec: Any, size: int, noise: float) -> float:
    phases = [phase.replace(noise_multiplier=noise * phase.noise_multiplier) for phase in spec.phases]
    return max(theory.group_epsilons(phases, size, 200, [1e-5], way)[0].upper for way in ("remove", "add"))


def test_the_truth_lies_between_the_ends(audited: tuple[Any, AuditResult]) -> None:
    spec, audit = audited
    found = [one for one in audit.findings if one.quantity == AS_RUN]
    assert len(found) == 4
    for one in found:
        truth = worst(spec, one.at["group_size"], 1.0)
        assert one.lower is not None
        assert one.lower <= truth <= one.value
        outside = one.method.startswith("noise and sensitivity measured on released")
        assert one.lower >= (0.75 if outside else 0.95) * truth
        assert (one.bound, one.rigor, one.confidence) == ("estimate", "approximate", 0.95)
        assert [held.name for held in one.assumptions] == ["sampled-gaussian-steps"]


def test_both_ends_move_when_a_tenth_of_the_noise_is_missing(audited: tuple[Any, AuditResult]) -> None:
    """The squares of the noise shrink by 0.81 in every record of it; what ran then leaks what an accountant says."""
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
        assert one.lower is not None
        assert other.lower is not None
        assert other.lower > 1.05 * one.lower
        assert other.value > 1.05 * one.value
        assert other.lower <= worst(spec, one.at["group_size"], 0.9) <= other.value


def test_it_decides_no_claim(audited: tuple[Any, AuditResult]) -> None:
    """Every verdict is the same without it, and with one of 0 and of infinity in its place."""
    spec, audit = audited

    def verdicts(findings: tuple[Finding, ...]) -> object:
        given = Concluded(
            spec=spec, findings=findings, series=audit.series, checks=audit.checks, evidence=audit.evidence,
            trials=1, needed=1,
        )  # fmt: skip
        return [(one.verdict, one.reason, one.upper, one.lower) for one in judge([given])[0].verdicts]

    others = tuple(one for one in audit.findings if one.quantity != AS_RUN)
    mine = [one for one in audit.findings if one.quantity == AS_RUN]
    expected = verdicts(others)
    for value in (0.0, float("inf")):
        assert verdicts((*others, *(replace(one, value=value, lower=value) for one in mine))) == expected


def test_reports_tell_it_beside_conformance(audited: tuple[Any, AuditResult], tmp_path: Path) -> None:
    _, audit = audited
    result = dpspec.Result(
        audits=(audit,), confidence=0.95, created="2026-01-01T00:00:00+00:00", environment=FrozenMap()
    )
    for text in (terminal.render(result), markdown.render(result)):
        said = " ".join(text.split())
        assert said.count("Estimated epsilon of the executed run (") == 4
        assert "No claim depends on this estimate." in said
        assert AS_RUN not in said
        assert "may violate this assumption" not in said
    deviating = replace(audit, conformance=replace(audit.conformance, status="deviates"))
    assert phrases.as_run(deviating)[-1].endswith("The run deviates and may violate this assumption.")


def test_what_is_not_measured_is_named(tmp_path: Path) -> None:
    """Records as canaries have no direction: what a planted record adds is not seen, and the report says so."""
    overrides = ("audit.canary={space: input, count: 80}",)
    result = dpspec.run(str(written(tmp_path, SPEC)), overrides=overrides, store=str(tmp_path / "store"))
    said = " ".join(terminal.render(result).split())
    assert "not available; missing: contribution (too few gradient canaries, or none)" in said
    assert (
        said.count("Estimated epsilon of the executed run (") == 3
    )  # one that is not given, and two sizes as reported
