"""Whole audits of matrix mechanisms, and specs that are refused."""

from pathlib import Path

import pytest
from support import specs

from dpspec.contract.results import AuditResult
from dpspec.testing import MechanismSuite, constant, decreasing, increasing

TEXT = """\
dpspec: 1
name: rounds
mechanism:
  kind: matrix
  steps: {steps}
  noise_multiplier: {noise}
  encoder: {encoder}
  participation: {participation}
data: {{kind: declared, records: 100}}
threat_model: {{adjacency: zero-out, group_size: [{size}]}}
claims:
  - {{id: high, kind: approx-dp, epsilon: {high}, delta: 1e-6, group_size: {size}}}
  - {{id: low, kind: approx-dp, epsilon: {low}, delta: 1e-6, group_size: {size}}}
"""

_USUAL = {
    "steps": 12,
    "noise": 2.0,
    "encoder": "{kind: square-root, bands: 4}",
    "participation": "{scheme: cyclic, separation: 4}",
    "size": 1,
    "high": 5.25,
    "low": 5.0,
}


class TestMatrix(MechanismSuite):
    kind = "matrix"
    overrides = ("audit.releases=16", "mechanism.steps=8", "claims.one-epoch-counted.expect=[refuted, open]")
    monotone = {  # noqa: RUF012
        "mechanism.noise_multiplier": decreasing(1.0, 4.0),
        "mechanism.steps": increasing(4, 24),
        "mechanism.encoder.bands": increasing(1, 4, 8),
        "mechanism.clip_norm": constant(0.5, 2.0),
        "mechanism.participation.separation": decreasing(1, 4, 12),
    }


def write(folder: Path, **changes: object) -> Path:
    path = folder / "spec.yaml"
    path.write_text(TEXT.format_map({**_USUAL, **changes}), encoding="utf-8")
    return path


def audited(folder: Path, **changes: object) -> AuditResult:
    return specs.audit_of(write(folder, **changes), folder / "store")


@pytest.mark.family
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"size": 3, "high": 19.5, "low": 19.4},
        {"participation": "{scheme: single}", "encoder": "{kind: tree}", "high": 4.9, "low": 4.7},
        {"participation": "{scheme: cyclic-poisson, separation: 4, rate: 0.1}", "high": 0.942, "low": 0.941},
        {"participation": "{scheme: balls-in-bins, separation: 4}", "high": 5.21, "low": 4.25},
    ],
)
def test_claims_are_proved_or_refuted(changes: dict[str, object], tmp_path: Path) -> None:
    verdicts = {verdict.claim: verdict.verdict for verdict in audited(tmp_path, **changes).verdicts}
    assert verdicts == {"high": "proved", "low": "refuted"}


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"encoder": "{kind: square-root}"}, "mechanism.encoder", "bands"),
        ({"encoder": "{kind: tree, bands: 4}"}, "mechanism.encoder.bands", "bands"),
        (
            {"encoder": "{kind: banded, coefficients: [0.0, 1.0]}"},
            "mechanism.encoder.coefficients[0]",
            "at least 1e-06",
        ),
        ({"encoder": "{kind: banded, coefficients: [1e-200]}"}, "mechanism.encoder.coefficients[0]", "at least 1e-06"),
        ({"encoder": "{kind: buffers, weights: [0.1], decays: [0.1, 0.2]}"}, "mechanism.encoder.decays", "as many"),
        ({"encoder": "{kind: tree}", "steps": 5000}, "mechanism.steps", "at most 4000"),
        ({"steps": 200_000}, "mechanism.steps", "at most 100000"),
        ({"participation": "{scheme: cyclic}"}, "mechanism.participation", "separation"),
        ({"participation": "{scheme: shuffled}"}, "mechanism.participation.scheme", "balls-in-bins"),
        (
            {"participation": "{scheme: random-allocation, separation: 5}"},
            "mechanism.participation.separation",
            "multiple of the 5 steps",
        ),
        (
            {"participation": "{scheme: balls-in-bins, separation: 50}"},
            "mechanism.participation.separation",
            "at most the number of steps",
        ),
        (
            {"participation": "{scheme: balls-in-bins, separation: 4}", "size": 2},
            "threat_model.group_size",
            "not for groups",
        ),
    ],
)
def test_uncovered_specs_are_located_errors(changes, path, message, tmp_path):
    problems = specs.diagnosed(write(tmp_path, **changes))
    texts = {f"{'.'.join(map(str, problem.path))}: {problem.message} {problem.help}" for problem in problems}
    place = path.replace("[", ".").replace("]", "")
    assert any(text.startswith(place) and message in text for text in texts), texts


@pytest.mark.parametrize(
    "encoder", ["{kind: banded, coefficients: [0.001, -1000]}", "{kind: buffers, weights: [900], decays: [0.9]}"]
)
def test_attacked_noise_must_stay_bounded(encoder: str, tmp_path: Path) -> None:
    path = write(tmp_path, encoder=encoder)
    text = path.read_text(encoding="utf-8").replace("{kind: declared, records: 100}", "{kind: synthetic, records: 100}")
    more = "model: {kind: linear}\ntraining: {backend: matrix, learning_rate: 0.5}\naudit: {method: many-run}\n"
    path.write_text(text + more, encoding="utf-8")
    assert [".".join(map(str, problem.path)) for problem in specs.diagnosed(path)] == ["mechanism.encoder"]
