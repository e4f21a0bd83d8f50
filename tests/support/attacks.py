"""Small audits by the group plugin, for tests of its bounds and attacks."""

import math
from pathlib import Path

from dpspec.contract import Outcome, Spec, Trial
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec_group.scores import ScoreDistribution
from support import specs
from support.specs import diagnosed

TEXT = """\
dpspec: 1
name: small
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 0.5, sampling: {scheme: poisson, rate: 0.5}, steps: 10}
data: {kind: synthetic, records: 60, features: 20, classes: 10, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: [1, 4]}
claims:
  - {id: one, kind: approx-dp, epsilon: 90.0, delta: 1e-5}
  - {id: four, kind: approx-dp, epsilon: 900.0, delta: 1e-5, group_size: 4}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 200}, seed: 11}
"""


def attacked(folder: Path, *overrides: str, text: str = TEXT) -> Spec:
    return spec_at(written(folder, text), *overrides)


def written(folder: Path, text: str = TEXT) -> Path:
    return specs.written(folder, text)


def spec_at(path: Path, *overrides: str) -> Spec:
    (spec,) = specs.loaded(path, *overrides)
    return spec


def errors(folder: Path, *overrides: str, text: str = TEXT) -> list[str]:
    return [found.message for found in diagnosed(written(folder, text), *overrides) if found.severity == "error"]


def audited(folder: Path, *overrides: str, text: str = TEXT) -> AuditResult:
    return specs.audited(folder, text, *overrides)


def trials_of(spec: Spec, *indices: int) -> list[Trial]:
    prepared = prepare(spec, load_catalog())
    assert [d for d in prepared.diagnostics if d.severity == "error"] == []
    inputs = prepared.trial_inputs()
    context = RunContext(prepared, load_catalog(), inputs, device="cpu")
    return list(prepared.audit.trials(inputs, context, indices))


def outcomes_of(spec: Spec, trials: list[Trial]) -> list[Outcome]:
    return list(prepare(spec, load_catalog()).audit.conclude(spec, trials))


def moments(law: ScoreDistribution) -> tuple[float, ...]:
    """Mean and standard deviation of the score of an absent canary, then of a present one."""
    found: list[float] = []
    for masses in (law.absent, law.present):
        mean = float(masses @ law.scores)
        found += [mean, math.sqrt(float(masses @ (law.scores - mean) ** 2))]
    return tuple(found)
