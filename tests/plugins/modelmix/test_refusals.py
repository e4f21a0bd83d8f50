"""Unsupported specs are refused at their place before anything is computed, with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import specs

from dpspec.contract import Diagnostic

BASE = """\
dpspec: 1
name: refused
mechanism:
  kind: modelmix
  noise_multiplier: 1.0
  clip_norm: 1.0
  mixing: {threshold: 1.0}
  sampling: {scheme: poisson, rate: 0.1}
  steps: 10
data: {kind: synthetic, records: 100, features: 16, classes: 4}
model: {kind: linear}
claims:
  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: one-hot, count: 40}}
"""


def diagnostics(tmp_path: Path, *overrides: str) -> list[Diagnostic]:
    return specs.diagnostics(tmp_path, BASE, *overrides)


LAPLACE = [
    "mechanism.noise=laplace",
    "mechanism.noise_multiplier=14.14",
    "mechanism.clip_norm=0.1",
    "mechanism.mixing.threshold=2.0",
    "mechanism.sampling={scheme: full}",
]
EMBEDDING = (
    "mechanism.embedding={form: residual-only, dimension: 5, clip_norm: 1.0, noise_multiplier: 1.2, anchors: 10}"
)
EMBEDDED = ["data.split={test: 0.2}", EMBEDDING]
UTILITY = ["mechanism.utility={smoothness: 1.0, distance: 1.0, span: 2.0, tail: 0.05}"]


@pytest.mark.parametrize("given", [[], LAPLACE, EMBEDDED, UTILITY])
def test_the_base_is_fine(tmp_path: Path, given: list[str]) -> None:
    assert diagnostics(tmp_path, *given) == []


@pytest.mark.parametrize(
    ("overrides", "code", "path", "severity"),
    [
        (["mechanism.mixing.threshold=-0.1"], "out-of-range", "mechanism.mixing.threshold", "error"),
        (["mechanism.linf_truncation=69"], "out-of-range", "mechanism.linf_truncation", "error"),
        (["mechanism.linf_truncation=0"], "out-of-range", "mechanism.linf_truncation", "error"),
        (["mechanism.linf_truncation=1.5"], "wrong-type", "mechanism.linf_truncation", "error"),
        (["threat_model.adjacency=replace-one"], "unsupported", "threat_model.adjacency", "error"),
        (["threat_model.group_size=[1, 4]"], "unsupported", "threat_model.group_size", "error"),
        (["mechanism.sampling={scheme: fixed, batch_size: 10}"], "unsupported", "mechanism.sampling.scheme", "error"),
        (["training.optimizer={kind: momentum}"], "unsupported", "training.optimizer", "error"),
        (["training.optimizer={kind: adam}"], "unsupported", "training.optimizer", "error"),
        (["training.optimizer={kind: momentum}", "audit=null"], "unsupported", "training.optimizer", "warning"),
        (["mechanism.mixing.weights=shared"], "unsupported", "mechanism.mixing.weights", "warning"),
        (["mechanism.mixing.unmixed=[bias]"], "unsupported", "mechanism.mixing.unmixed", "warning"),
        (["mechanism.mixing.ties=zero"], "unsupported", "mechanism.mixing.ties", "warning"),
        (["mechanism.mixing.threshold=0"], "unsupported", "mechanism.mixing.threshold", "warning"),
        (
            ["mechanism.reduction=sum", "mechanism.mixing.threshold=0.1"],
            "bad-value",
            "mechanism.mixing.threshold",
            "warning",
        ),
        (["mechanism.noise_multiplier=0"], "no-noise", "mechanism.noise_multiplier", "warning"),
        (
            ["mechanism.mixing.relative_to=absolute", "training.schedule={kind: linear}"],
            "unsupported",
            "mechanism.mixing.relative_to",
            "error",
        ),
        (
            ["mechanism.learning_rate=0.2", "training.schedule={kind: linear}"],
            "conflicting-key",
            "training.schedule",
            "error",
        ),
        (["audit.canary=null"], "missing-key", "audit", "error"),
        (["audit.canary.kind=one-hut"], "unsupported", "audit.canary.kind", "error"),
        (["audit.canary.count=69"], "bad-value", "audit.canary.count", "error"),
        (["audit.canary.count=7"], "bad-value", "audit.canary.count", "error"),
        (["audit.canary.space=input"], "unsupported", "audit.canary.space", "error"),
        (["audit.method=many-run"], "unsupported", "audit.method", "error"),
        (["threat_model.access=final-model"], "unsupported", "threat_model.access", "error"),
        (["training.backend=opacus"], "missing-capability", "training.backend", "error"),
        (["data={kind: declared, records: 100, features: 16, classes: 4}"], "data-not-at-hand", "audit", "error"),
        (["model=null"], "no-model", "audit", "error"),
        ([*LAPLACE, "mechanism.linf_truncation=4"], "unsupported", "mechanism.linf_truncation", "error"),
        ([*LAPLACE, "mechanism.mixing.threshold=0.0005"], "bad-value", "mechanism.mixing.threshold", "error"),
        ([*LAPLACE, "mechanism.mixing.threshold=0.005"], "bad-value", "mechanism.mixing.threshold", "warning"),
        ([*LAPLACE, "mechanism.mixing.threshold=0"], "unsupported", "mechanism.mixing.threshold", "warning"),
        ([*LAPLACE, *EMBEDDED], "unsupported", "mechanism.embedding", "error"),
        ([*LAPLACE, *UTILITY], "unsupported", "mechanism.utility", "error"),
        (
            [*LAPLACE, "mechanism.steps=null", "mechanism.phases=[{steps: 2}, {steps: 3, noise: gaussian}]"],
            "unsupported",
            "mechanism.phases.1.noise",
            "error",
        ),
        (["mechanism.noise=cauchy"], "bad-choice", "mechanism.noise", "error"),
        ([*EMBEDDED, "mechanism.embedding.dimension=69"], "out-of-range", "mechanism.embedding.dimension", "error"),
        ([*EMBEDDED, "mechanism.embedding.anchors=4"], "bad-value", "mechanism.embedding.anchors", "error"),
        ([*EMBEDDED, "mechanism.embedding.anchors=21"], "out-of-range", "mechanism.embedding.anchors", "error"),
        (
            [*EMBEDDED, "mechanism.embedding.noise_multiplier=0"],
            "no-noise",
            "mechanism.embedding.noise_multiplier",
            "warning",
        ),
        ([*EMBEDDED, "mechanism.embedding.form=both"], "bad-choice", "mechanism.embedding.form", "error"),
        ([*EMBEDDED, *UTILITY], "unsupported", "mechanism.utility", "error"),
        (["mechanism.utility={smoothness: 1.0}"], "missing-key", "mechanism.utility", "error"),
        ([*UTILITY, "model=null"], "no-model", "mechanism.utility", "error"),
        ([*UTILITY, "training.schedule={kind: linear}"], "unsupported", "mechanism.utility", "error"),
        ([*UTILITY, "training.optimizer={kind: momentum}"], "unsupported", "mechanism.utility", "error"),
        ([*UTILITY, "mechanism.mixing.weights=shared"], "unsupported", "mechanism.utility", "error"),
    ],
)
def test_what_does_not_hold_is_said_and_located(
    tmp_path: Path, overrides: list[str], code: str, path: str, severity: str
) -> None:
    found = diagnostics(tmp_path, *overrides)
    assert (code, path, severity) in [(d.code, ".".join(map(str, d.path)), d.severity) for d in found]
    assert all(d.span is not None for d in found)


def test_a_sum_that_amplifies_nothing_is_warned_of_with_the_factor(tmp_path: Path) -> None:
    (found,) = diagnostics(tmp_path, "mechanism.reduction=sum", "mechanism.mixing.threshold=0.3")
    assert "factor is about 1.0075" in found.message
    assert found.help is not None
    assert "mean" in found.help


def test_phases_may_change_the_threshold_but_not_the_rule(tmp_path: Path) -> None:
    phases = "mechanism.phases=[{steps: 5, mixing: {threshold: 2}}, {steps: 5, mixing: {threshold: 1%s}}]"
    plain = ["mechanism.steps=null", phases % ""]
    assert diagnostics(tmp_path, *plain) == []
    other = ["mechanism.steps=null", phases % ", enforcement: literal"]
    assert [d.code for d in diagnostics(tmp_path, *other)] == ["unsupported"]


@pytest.mark.parametrize(("clip", "code"), [("5e-324", "out-of-range"), ("1e300", "bad-value")])
def test_a_clip_norm_whose_noise_rounds_to_another_is_refused(tmp_path: Path, clip: str, code: str) -> None:
    errors = [d for d in diagnostics(tmp_path, f"mechanism.clip_norm={clip}") if d.severity == "error"]
    assert [(d.code, d.path) for d in errors] == [(code, ("mechanism", "clip_norm"))]
