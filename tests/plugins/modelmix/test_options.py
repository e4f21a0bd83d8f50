"""Unsupported specs are refused at their place before anything is computed, with a way out."""

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
DECAY, PHASES = "training.schedule={kind: linear}", "M.phases=[{steps: 2}, {steps: 3, noise: gaussian}]"
UTILITY = ["mechanism.utility={smoothness: 1.0, distance: 1.0, span: 2.0, tail: 0.05}"]


@pytest.mark.parametrize("given", [[], LAPLACE, EMBEDDED, UTILITY])
def test_the_base_is_fine(tmp_path: Path, given: list[str]) -> None:
    assert diagnostics(tmp_path, *given) == []


@pytest.mark.parametrize(
    ("overrides", "code", "path", "severity"),
    [
        (["M.mixing.threshold=-0.1"], "out-of-range", "M.mixing.threshold", "error"),
        (["M.linf_truncation=69"], "out-of-range", "M.linf_truncation", "error"),
        (["M.linf_truncation=0"], "out-of-range", "M.linf_truncation", "error"),
        (["M.linf_truncation=1.5"], "wrong-type", "M.linf_truncation", "error"),
        (["threat_model.adjacency=replace-one"], "unsupported", "threat_model.adjacency", "error"),
        (["threat_model.group_size=[1, 4]"], "unsupported", "threat_model.group_size", "error"),
        (["M.sampling={scheme: fixed, batch_size: 10}"], "unsupported", "M.sampling.scheme", "error"),
        (["training.optimizer={kind: momentum}"], "unsupported", "training.optimizer", "error"),
        (["training.optimizer={kind: adam}"], "unsupported", "training.optimizer", "error"),
        (["training.optimizer={kind: momentum}", "audit=null"], "unsupported", "training.optimizer", "warning"),
        (["M.mixing.weights=shared"], "unsupported", "M.mixing.weights", "warning"),
        (["M.mixing.unmixed=[bias]"], "unsupported", "M.mixing.unmixed", "warning"),
        (["M.mixing.ties=zero"], "unsupported", "M.mixing.ties", "warning"),
        (["M.mixing.threshold=0"], "unsupported", "M.mixing.threshold", "warning"),
        (["M.reduction=sum", "M.mixing.threshold=0.1"], "bad-value", "M.mixing.threshold", "warning"),
        (["M.noise_multiplier=0"], "no-noise", "M.noise_multiplier", "warning"),
        (["M.mixing.relative_to=absolute", DECAY], "unsupported", "M.mixing.relative_to", "error"),
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
        ([*LAPLACE, "M.linf_truncation=4"], "unsupported", "M.linf_truncation", "error"),
        ([*LAPLACE, "M.mixing.threshold=0.0005"], "bad-value", "M.mixing.threshold", "error"),
        ([*LAPLACE, "M.mixing.threshold=0"], "unsupported", "M.mixing.threshold", "warning"),
        ([*LAPLACE, *EMBEDDED], "unsupported", "M.embedding", "error"),
        ([*LAPLACE, *UTILITY], "unsupported", "M.utility", "error"),
        ([*LAPLACE, "M.steps=null", PHASES], "unsupported", "M.phases.1.noise", "error"),
        (["M.noise=cauchy"], "bad-choice", "M.noise", "error"),
        ([*EMBEDDED, "M.embedding.dimension=69"], "out-of-range", "M.embedding.dimension", "error"),
        ([*EMBEDDED, "M.embedding.anchors=4"], "bad-value", "M.embedding.anchors", "error"),
        ([*EMBEDDED, "M.embedding.anchors=21"], "out-of-range", "M.embedding.anchors", "error"),
        ([*EMBEDDED, "M.embedding.noise_multiplier=0"], "no-noise", "M.embedding.noise_multiplier", "warning"),
        ([*EMBEDDED, "M.embedding.form=both"], "bad-choice", "M.embedding.form", "error"),
        ([*EMBEDDED, *UTILITY], "unsupported", "M.utility", "error"),
        (["M.utility={smoothness: 1.0}"], "missing-key", "M.utility", "error"),
        ([*UTILITY, "model=null"], "no-model", "M.utility", "error"),
        ([*UTILITY, DECAY], "unsupported", "M.utility", "error"),
        ([*UTILITY, "training.optimizer={kind: momentum}"], "unsupported", "M.utility", "error"),
        ([*UTILITY, "M.mixing.weights=shared"], "unsupported", "M.utility", "error"),
    ],
)
def test_what_does_not_hold_is_said_and_located(tmp_path, overrides, code, path, severity):
    """``M.`` means ``mechanism.``."""
    found = diagnostics(tmp_path, *(override.replace("M.", "mechanism.", 1) for override in overrides))
    path = path.replace("M.", "mechanism.", 1)
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


@pytest.mark.parametrize("clip", ["5e-324", "1e300"])
def test_a_clip_norm_whose_noise_rounds_to_another_is_refused(tmp_path: Path, clip: str) -> None:
    errors = [d for d in diagnostics(tmp_path, f"mechanism.clip_norm={clip}") if d.severity == "error"]
    assert [(d.code, d.path) for d in errors] == [("out-of-range", ("mechanism", "clip_norm"))]
