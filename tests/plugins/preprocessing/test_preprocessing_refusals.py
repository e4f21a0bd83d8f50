"""Unsupported specs are refused at their place before anything is computed, with a way out."""

import re
from pathlib import Path

import pytest
from support import specs

from dpspec.contract import Diagnostic
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

BASE = """\
dpspec: 1
name: refused
mechanism:
  kind: preprocessing
  pipeline: [{impute: mean}]
  private: {kind: gaussian, eps_noise: 0.3}
  collection: {max_missing_rows: 10, min_observed: 90}
data: {kind: synthetic, records: 200, features: 6, classes: 2}
threat_model: {adjacency: replace-one}
claims:
  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5, over: collection}
"""
NET = "{kind: dp-gd, eps_noise: 0.3, steps: 5, loss: cross-entropy, lipschitz: 1.0}"
MODEL = "model={kind: mlp, hidden: [4]}"
GD = "P={kind: dp-gd, eps_noise: 0.3, steps: 5, loss: logistic}"


def in_full(text: str) -> str:
    """M, P and C at the beginning mean ``mechanism``, its block ``private`` and its block ``collection``."""
    names = {"M": "mechanism", "P": "mechanism.private", "C": "mechanism.collection"}
    return re.sub(r"^[MPC]\b", lambda found: names[found[0]], text)


def diagnostics(tmp_path: Path, *overrides: str) -> list[Diagnostic]:
    return specs.diagnostics(tmp_path, BASE, *map(in_full, overrides))


def test_the_base_is_fine(tmp_path: Path) -> None:
    assert diagnostics(tmp_path) == []
    assert diagnostics(tmp_path, GD) == []
    assert diagnostics(tmp_path, step("{quantise: 0.01}"), "C={max_ball: 9}") == []


@pytest.mark.parametrize(
    ("key", "value", "others"),
    [
        ("lipschitz", 0.1, ["P={kind: dp-gd, eps_noise: 0.3, steps: 5, loss: logistic, theta_radius: 0.3}"]),
        ("smooth", 0.1, ["P={kind: dp-gd, eps_noise: 0.3, steps: 5, loss: logistic, theta_radius: 0.3}"]),
        (
            "learning_rate",
            9.0,
            [
                "P={kind: sgd-iterated, eps_noise: 0.1, loss: logistic}",
                "M.pipeline=[{scale: standard, clip: 2.3}]",
                "C={min_std: 0.1}",
                "threat_model.access=final-model",
            ],
        ),
    ],
)
def test_a_stated_limit_is_within_it(tmp_path: Path, key: str, value: float, others: list[str]) -> None:
    place = ("mechanism", "private", key)
    (found,) = (d for d in diagnostics(tmp_path, *others, f"P.{key}={value}") if d.path == place)
    limit = re.search(r"(?:at least|curvature =) ([0-9.]+[0-9])", found.message)
    assert limit is not None
    assert not [d for d in diagnostics(tmp_path, *others, f"P.{key}={limit[1]}") if d.path == place]


def step(text: str) -> str:
    return f"M.pipeline=[{text}]"


AUDIT = "audit={method: many-run, runs: 20}"


LAST = "threat_model.access=final-model"
ITERATED = "{kind: sgd-iterated, eps_noise: 0.1, loss: logistic}"
NET_ITERATED = "{kind: sgd-iterated, eps_noise: 0.1, loss: cross-entropy, lipschitz: 1.0}"
NO_LOSS = [GD, "P.loss=null", "P.lipschitz=1.0"]
PTR = "M.ptr={epsilon: 0.1, delta: 1e-6}"
AT = "M.pipeline.0"
HELD_OUT = "data.split={test: 50}"
LOSS = "claims=[{id: low, kind: metric, name: loss, at_most: 0.6}]"
SCALE = step("{scale: standard, clip: 3.0}")
REGRESSION = [step("{impute: regression}"), "C={max_missing_rows: 9, min_eigenvalue: 1.0, max_eigenvalue: 9.0}"]


@pytest.mark.parametrize(
    ("overrides", "path", "severity"),
    [
        (["threat_model.adjacency=add-remove"], "threat_model.adjacency", "error"),
        (["threat_model.group_size=[1, 2]"], "threat_model.group_size", "error"),
        ([step("{impute: trimmed}")], AT, "error"),
        ([step("{impute: trimmed, trim: 45}"), "C.max_spread=0.5"], f"{AT}.trim", "error"),
        ([step("{impute: mean, pca: 2}")], f"{AT}.pca", "error"),
        ([step("{impute: mean, affine: true}")], f"{AT}.affine", "error"),
        ([step("{pca: 6}")], f"{AT}.pca", "error"),
        ([step("{scale: standard}")], AT, "error"),
        ([step("{impute: mean}, {pca: 2}")], "M.pipeline", "warning"),
        ([step("{pca: 2}")], "C", "warning"),
        ([step("{pca: 2}"), "C.min_eigengap=0.04"], "C.min_eigengap", "warning"),
        ([step("{deduplicate: 0.1}"), "C.max_ball=100"], "C.max_ball", "warning"),
        (["C.max_missing_rows=200"], "C.max_missing_rows", "error"),
        (["C.min_observed=1"], "C.min_observed", "error"),
        (REGRESSION, "C.min_eigenvalue", "error"),
        (["C.max_eigenvalue=1e-4"], "C.max_eigenvalue", "error"),
        ([step("{deduplicate: 0.01}"), "C={max_ball: 4, min_std: 0.1}"], "C.min_std", "error"),
        ([SCALE, "C={min_std: 0.1, min_observed: 150}"], "C.min_observed", "error"),
        (["P.loss=logistic"], "P.loss", "error"),
        (["P.kind=dp-gd"], "P", "error"),
        ([GD, "P.lipschitz=0.5"], "P.lipschitz", "error"),
        ([GD, "M.radius=2.0"], "M.radius", "error"),
        ([GD, "data.classes=3"], "P.loss", "error"),
        (NO_LOSS, "P", "warning"),
        ([f"P={ITERATED}"], "threat_model.access", "error"),
        ([f"P={ITERATED}", "P.learning_rate=3.0", LAST], "P.learning_rate", "error"),
        # Records of norm 3 have nine times the curvature.
        ([f"P={ITERATED}", SCALE, "C={min_std: 0.5}", LAST], "P.learning_rate", "error"),
        ([f"P={NET}"], "P.loss", "error"),
        ([MODEL], "model", "error"),
        ([f"P={NET}", MODEL], "P", "warning"),
        ([f"P={NET.replace(', lipschitz: 1.0', '')}", MODEL], "P", "error"),
        ([f"P={NET}", "P.learning_rate=0.5", MODEL], "P.learning_rate", "error"),
        ([f"P={NET}", "P.theta_radius=2.0", MODEL], "P.theta_radius", "error"),
        ([f"P={NET_ITERATED}", LAST, MODEL], "P.loss", "error"),
        (["P={kind: sgd-iterated, eps_noise: 0.1, lipschitz: 1.0, smooth: 1.0}", LAST], "P", "error"),
        (["P={kind: gaussian, eps_noise: 1e-200}"], "P.eps_noise", "error"),
        (["P={kind: gaussian, eps_noise: 1.3, sensitivity: 1.5e-323}"], "P.sensitivity", "error"),
        (["P={kind: laplace, eps_noise: 0.3, lipschitz: 1e300}"], "P.lipschitz", "error"),
        ([PTR, step("{scale: standard, clip: 1.0}")], "M.ptr", "error"),
        ([PTR, step("{pca: 2}"), "C.min_eigengap=0.03"], "C.min_eigengap", "error"),
        (["M.ptr={epsilon: 0.1, delta: 1e-4}", "claims.one.over=null"], "claims.0.delta", "warning"),
        (["audit={method: one-run}"], "audit.method", "error"),
        ([AUDIT, "audit.canary={space: input}"], "audit.canary", "error"),
        ([AUDIT, "audit.clusters=3"], "audit.clusters", "error"),
        ([AUDIT, "audit.runs=2"], "audit.runs", "error"),
        ([AUDIT, step("{quantise: 0.1}"), "audit.clusters=7"], "audit.clusters", "error"),
        ([AUDIT, step("{quantise: 0.1}"), "audit.members=60"], "audit", "error"),
        ([AUDIT, "data={kind: declared, records: 200, features: 6}"], "audit", "error"),
        ([AUDIT, *NO_LOSS], "P", "error"),
        ([step("{dp-pca: 2}")], AT, "error"),
        ([step("{dp-pca: 6, eps_noise: 1.0}"), "C=null"], f"{AT}.dp-pca", "error"),
        ([step("{dp-pca: 2, eps_noise: 1.0}, {quantise: 0.1}")], f"{AT}.dp-pca", "error"),
        ([step("{dp-pca: 2, eps_noise: 1.0}")], "C", "error"),
        ([step("{dp-pca: 2, eps_noise: 1.0}"), "C=null", PTR], "M.ptr", "error"),
        ([step("{pca: 2, eps_noise: 1.0}")], f"{AT}.eps_noise", "error"),
        (["M.pipeline=[]"], "C", "error"),
        (["M.pipeline=[]", "C=null", PTR], "M.ptr", "error"),
        (["M.pipeline=[]", "C=null", AUDIT, "audit.clusters=3"], "audit.clusters", "error"),
        ([AUDIT, HELD_OUT, LOSS], "claims.0.name", "error"),
        ([AUDIT, HELD_OUT, LOSS, f"P={NET}", MODEL], "claims.0.name", "error"),
        ([AUDIT, HELD_OUT, LOSS.replace("loss", "accuracy")], "claims.0.name", "error"),
        ([AUDIT, GD, LOSS], "claims.0.name", "error"),  # no test records
    ],
)
def test_what_cannot_be_audited_is_located(tmp_path: Path, overrides: list[str], path: str, severity: str) -> None:
    found = diagnostics(tmp_path, *overrides)
    assert (severity, in_full(path)) in [(d.severity, ".".join(map(str, d.path))) for d in found], found
    assert all(d.span is not None for d in found)
    assert all(d.help for d in found if d.severity == "error")  # what to do instead


@pytest.mark.parametrize(
    ("overrides", "path", "valid"),
    [
        ([step("{impute: knn}")], f"{AT}.impute", "regression"),
        ([step("{impute: mean, fit: all}")], f"{AT}.fit", "mask"),
        (["P.eps_noise=0"], "P.eps_noise", ""),
        (["M.ptr={epsilon: 0, delta: 0.1}"], "M.ptr.epsilon", ""),
        ([step("{mask: any}")], AT, ""),
        ([GD, "P.kind=sgd-sampled", "P.batch_size=5"], "P.batch_size", "steps"),
    ],
)
def test_the_schema_refuses_keys_and_values(tmp_path: Path, overrides: list[str], path: str, valid: str) -> None:
    file = tmp_path / "refused.yaml"
    file.write_text(BASE, encoding="utf-8")
    (error,) = load_specs([file], load_catalog(), list(map(in_full, overrides))).diagnostics
    assert ".".join(map(str, error.path)) == in_full(path)
    assert (error.code in ("unknown-key", "bad-choice")) == bool(valid)
    assert error.span is not None
    assert valid in str(error.help)
