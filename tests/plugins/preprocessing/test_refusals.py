"""Unsupported specs are refused at their place before anything is computed, with a way out."""

from __future__ import annotations

import subprocess
import sys
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
GD = "mechanism.private={kind: dp-gd, eps_noise: 0.3, steps: 5, loss: logistic}"


def diagnostics(tmp_path: Path, *overrides: str) -> list[Diagnostic]:
    return specs.diagnostics(tmp_path, BASE, *overrides)


def test_the_base_is_fine(tmp_path: Path) -> None:
    assert diagnostics(tmp_path) == []
    assert diagnostics(tmp_path, GD) == []
    quantised = step("{quantise: 0.01}"), "mechanism.collection={max_ball: 9}", "mechanism.accounting=repaired"
    assert diagnostics(tmp_path, *quantised, SWEEP) == []


def step(text: str) -> str:
    return f"mechanism.pipeline=[{text}]"


AUDIT = "audit={method: many-run, runs: 20}"


def limits(text: str) -> str:
    return f"mechanism.collection={{{text}}}"


LIMITS, PRIVATE = "mechanism.collection", "mechanism.private"
SWEEP = "mechanism.sweep={over: eta, values: [0.1, 0.2]}"
PRINTED = "mechanism.accounting=printed"
LAST = "threat_model.access=final-model"
ITERATED = "mechanism.private={kind: sgd-iterated, eps_noise: 0.1, loss: logistic}"
PTR = "mechanism.ptr={epsilon: 0.1, delta: 1e-6}"
AT, BATCH = "mechanism.pipeline.0", "mechanism.private.batch_size"


@pytest.mark.parametrize(
    ("overrides", "severity", "path"),
    [
        (["threat_model.adjacency=add-remove"], "error", "threat_model.adjacency"),
        (["threat_model.group_size=[1, 2]"], "error", "threat_model.group_size"),
        ([step("{impute: trimmed}")], "error", AT),
        ([step("{impute: trimmed, trim: 45}"), "mechanism.collection.max_spread=0.5"], "error", f"{AT}.trim"),
        ([step("{impute: mean, pca: 2}")], "error", f"{AT}.pca"),
        ([step("{impute: mean, affine: true}")], "error", f"{AT}.affine"),
        ([step("{pca: 6}")], "error", f"{AT}.pca"),
        ([step("{scale: standard}")], "error", AT),
        ([step("{impute: mean}, {pca: 2}")], "warning", "mechanism.pipeline"),
        ([step("{pca: 2}")], "warning", LIMITS),
        ([step("{pca: 2}"), "mechanism.collection.min_eigengap=0.04"], "warning", f"{LIMITS}.min_eigengap"),
        ([step("{deduplicate: 0.1}"), "mechanism.collection.max_ball=100"], "warning", f"{LIMITS}.max_ball"),
        (["mechanism.collection.max_missing_rows=200"], "error", f"{LIMITS}.max_missing_rows"),
        (["mechanism.collection.min_observed=1"], "error", f"{LIMITS}.min_observed"),
        (
            [step("{impute: regression}"), limits("max_missing_rows: 9, min_eigenvalue: 1.0, max_eigenvalue: 9.0")],
            "error",
            f"{LIMITS}.min_eigenvalue",
        ),
        (["mechanism.private.loss=logistic"], "error", f"{PRIVATE}.loss"),
        (["mechanism.private.kind=dp-gd"], "error", PRIVATE),
        ([GD, "mechanism.private.lipschitz=0.5"], "error", f"{PRIVATE}.lipschitz"),
        ([GD, "mechanism.radius=2.0"], "error", "mechanism.radius"),
        ([GD, "data.classes=3"], "error", f"{PRIVATE}.loss"),
        ([GD, "mechanism.private.loss=null", "mechanism.private.lipschitz=1.0"], "warning", PRIVATE),
        ([ITERATED], "error", "threat_model.access"),
        ([ITERATED, "mechanism.private.learning_rate=3.0", LAST], "error", f"{PRIVATE}.learning_rate"),
        (  # records of norm 3 have nine times the curvature
            [
                ITERATED.replace("logistic", "squared"),
                f"{PRIVATE}.learning_rate=0.5",
                LAST,
                step("{scale: standard, clip: 3.0}"),
                limits("min_std: 0.5"),
            ],
            "error",
            f"{PRIVATE}.learning_rate",
        ),
        ([f"{PRIVATE}={NET}"], "error", f"{PRIVATE}.loss"),
        ([MODEL], "error", "model"),
        ([f"{PRIVATE}={NET}", MODEL], "warning", PRIVATE),
        ([f"{PRIVATE}={NET.replace(', lipschitz: 1.0', '')}", MODEL], "error", PRIVATE),
        ([f"{PRIVATE}={NET.replace('}', ', learning_rate: 0.5}')}", MODEL], "error", f"{PRIVATE}.learning_rate"),
        ([f"{PRIVATE}={NET.replace('}', ', theta_radius: 2.0}')}", MODEL], "error", f"{PRIVATE}.theta_radius"),
        (
            [f"{PRIVATE}={{kind: sgd-iterated, eps_noise: 0.1, loss: cross-entropy, lipschitz: 1.0}}", LAST, MODEL],
            "error",
            f"{PRIVATE}.loss",
        ),
        ([f"{PRIVATE}={{kind: sgd-iterated, eps_noise: 0.1, lipschitz: 1.0, smooth: 1.0}}", LAST], "error", PRIVATE),
        (
            [
                PRINTED,
                f"{PRIVATE}={{kind: sgd-iterated, eps_noise: 0.2, loss: logistic, lipschitz: 1.0, smooth: 1.0}}",
                LAST,
                "claims.one={id: one, kind: renyi-dp, alpha: 16.0, epsilon: 1.0, over: collection}",
            ],
            "error",
            "claims.0.alpha",
        ),
        ([PRINTED], "warning", "mechanism.accounting"),
        (["mechanism.accounting=certified"], "warning", "mechanism.accounting"),  # the former name of repaired
        ([SWEEP, step("{pca: 2}")], "error", "mechanism.sweep.over"),
        ([PRINTED, "mechanism.private.lipschitz=0.7"], "error", "mechanism.accounting"),
        ([PRINTED, "claims.one={id: one, kind: renyi-dp, alpha: 4.0, epsilon: 1.0}"], "error", "claims.0.alpha"),
        (
            [
                PRINTED,
                step("{pca: 2}"),
                "mechanism.collection.min_eigengap=0.5",
                "data.records=90",
                "mechanism.collection.min_observed=80",
            ],
            "error",
            "mechanism.accounting",
        ),
        ([PTR, step("{scale: standard, clip: 1.0}")], "error", "mechanism.ptr"),
        ([PTR, step("{pca: 2}"), "mechanism.collection.min_eigengap=0.03"], "error", f"{LIMITS}.min_eigengap"),
        (["mechanism.ptr={epsilon: 0.1, delta: 1e-4}", "claims.one.over=null"], "warning", "claims.0.delta"),
        (["audit={method: one-run}"], "error", "audit.method"),
        ([AUDIT, "audit.canary={space: input}"], "error", "audit.canary"),
        ([AUDIT, "audit.clusters=3"], "error", "audit.clusters"),
        ([AUDIT, "audit.runs=2"], "error", "audit.runs"),
        ([AUDIT, step("{quantise: 0.1}"), "audit.clusters=7"], "error", "audit.clusters"),
        ([AUDIT, step("{quantise: 0.1}"), "audit.members=60"], "error", "audit"),
        ([AUDIT, "data={kind: declared, records: 200, features: 6}"], "error", "audit"),
        ([AUDIT, GD, "mechanism.private.loss=null", "mechanism.private.lipschitz=1.0"], "error", PRIVATE),
        (
            [step("{impute: mean}"), limits("max_missing_rows: 10, min_observed: 90, max_eigenvalue: 1e-4")],
            "error",
            f"{LIMITS}.max_eigenvalue",
        ),
        ([step("{deduplicate: 0.01}"), limits("max_ball: 4, min_std: 0.1")], "error", f"{LIMITS}.min_std"),
        (
            [step("{scale: standard, clip: 1.0}"), limits("min_std: 0.1, min_observed: 150")],
            "error",
            f"{LIMITS}.min_observed",
        ),
        ([f"{PRIVATE}={{kind: gaussian, eps_noise: 1e-200}}"], "error", f"{PRIVATE}.eps_noise"),
        ([f"{PRIVATE}={{kind: gaussian, eps_noise: 1.3, sensitivity: 1.5e-323}}"], "error", f"{PRIVATE}.sensitivity"),
        ([f"{PRIVATE}={{kind: laplace, eps_noise: 0.3, lipschitz: 1e300}}"], "error", f"{PRIVATE}.lipschitz"),
    ],
)
def test_what_cannot_be_audited_is_located(tmp_path: Path, overrides: list[str], severity: str, path: str) -> None:
    found = diagnostics(tmp_path, *overrides)
    assert (severity, path) in [(d.severity, ".".join(map(str, d.path))) for d in found], found
    assert all(d.span is not None for d in found)
    assert all(d.help for d in found if d.severity == "error")  # what to do instead


@pytest.mark.parametrize(
    ("overrides", "path", "valid"),
    [
        (["threat_model.released=[output, fitted]"], "threat_model.released.1", "output"),
        ([step("{impute: knn}")], f"{AT}.impute", "regression"),
        ([step("{impute: mean, fit: all}")], f"{AT}.fit", "mask"),
        ([step("{deduplicate: 0.1, similarity: minhash}")], f"{AT}.similarity", "deduplicate"),
        ([step("{pca: 2, output: reduced}")], f"{AT}.output", "affine"),
        (["mechanism.private.norm=frobenius"], "mechanism.private.norm", "lipschitz"),
        (["mechanism.private.eps_noise=0"], "mechanism.private.eps_noise", ""),
        (["claims.one.delta=1.0"], "claims.0.delta", ""),
        (["mechanism.ptr={epsilon: 0, delta: 0.1}"], "mechanism.ptr.epsilon", ""),
        ([step("{mask: any}")], AT, ""),
        (["mechanism.orders=[1.0]"], "mechanism.orders.0", ""),
        (["claims.one={id: one, kind: renyi-dp, alpha: 1.0, epsilon: 1.0}"], "claims.0.alpha", ""),
        (["mechanism.collection.min_eigengap=0"], "mechanism.collection.min_eigengap", ""),
        ([GD, "mechanism.private.kind=sgd-sampled", "mechanism.private.batch_size=5"], BATCH, "steps"),
    ],
)
def test_the_schema_refuses_keys_and_values(tmp_path: Path, overrides: list[str], path: str, valid: str) -> None:
    file = tmp_path / "refused.yaml"
    file.write_text(BASE, encoding="utf-8")
    (error,) = load_specs([file], load_catalog(), overrides).diagnostics
    assert ".".join(map(str, error.path)) == path
    assert (error.code in ("unknown-key", "bad-choice")) == bool(valid)
    assert error.span is not None
    assert valid in str(error.help)


def test_what_is_said_before_anything_runs_loads_no_numerics() -> None:
    heavy = "{'torch', 'scipy', 'numpy', 'sklearn'} & set(sys.modules)"
    code = f"import sys, dpspec_preprocessing, dpspec_preprocessing.refusals; sys.exit(str({heavy} or ''))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr.strip() == b""
