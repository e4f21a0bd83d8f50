"""Small audits by the group plugin, for tests of its attacks."""

from __future__ import annotations

from pathlib import Path

from dpspec.contract import Outcome, Spec, Trial
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

TEXT = """\
dpspec: 1
name: small
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 0.5
  sampling: {scheme: poisson, rate: 0.5}
  steps: 10
data: {kind: synthetic, records: 60, features: 20, classes: 10, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: [1, 4]}
claims:
  - {id: one, kind: approx-dp, epsilon: 90.0, delta: 1e-5}
  - {id: four, kind: approx-dp, epsilon: 900.0, delta: 1e-5, group_size: 4}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 200}, seed: 11}
"""


def attacked(folder: Path, *overrides: str) -> Spec:
    """The small audit with other values, as ``--set`` would."""
    return spec_at(written(folder), *overrides)


def written(folder: Path) -> Path:
    """The file of the small audit."""
    path = folder / "small.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def spec_at(path: Path, *overrides: str) -> Spec:
    """The only spec of a file."""
    loaded = load_specs([path], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    (spec,) = loaded.specs
    return spec


def trials_of(spec: Spec, *indices: int) -> list[Trial]:
    """Trains; the trials of one chunk."""
    prepared = prepare(spec, load_catalog())
    assert [d for d in prepared.diagnostics if d.severity == "error"] == []
    inputs = prepared.audit.trial_inputs(spec)
    context = RunContext(prepared, load_catalog(), inputs, device="cpu")
    return list(prepared.audit.trials(inputs, context, indices))


def outcomes_of(spec: Spec, trials: list[Trial]) -> list[Outcome]:
    """What the audit concludes."""
    return list(prepare(spec, load_catalog()).audit.conclude(spec, trials))
