from __future__ import annotations

from pathlib import Path

import pytest

from dpspec.contract import Diagnostic
from dpspec.engine.preparing.prepare import check, prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

BASE = """\
dpspec: 1
name: refused
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 10
data: {kind: synthetic, records: 100, features: 16, classes: 4}
model: {kind: linear}
threat_model: {group_size: [1, 4]}
claims:
  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 40}}
"""


def diagnostics(tmp_path: Path, *overrides: str) -> list[Diagnostic]:
    path = tmp_path / "refused.yaml"
    path.write_text(BASE, encoding="utf-8")
    loaded = load_specs([path], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    return [d for spec in loaded.specs for d in check(spec, load_catalog())]


def test_the_base_is_fine(tmp_path: Path) -> None:
    assert diagnostics(tmp_path) == []


@pytest.mark.parametrize(
    ("overrides", "code", "path"),
    [
        (["threat_model.adjacency=replace-one"], "unsupported", "threat_model.adjacency"),
        (["threat_model.group_size=[1, 101]"], "group-too-large", "threat_model.group_size"),
        (["mechanism.sampling={scheme: fixed, batch_size: 97}"], "bad-value", "mechanism.sampling.batch_size"),
        (["mechanism.sampling={scheme: shuffled, batch_size: 101}"], "bad-value", "mechanism.sampling.batch_size"),
        (
            ["mechanism.sampling={scheme: shuffled, batch_size: 10}", "audit=null"],
            "unsupported",
            "mechanism.sampling.scheme",
        ),
        (["training.optimizer={kind: adam}"], "unsupported", "training.optimizer"),
        (["mechanism.noise_multiplier=0"], "no-noise", "mechanism.noise_multiplier"),
        (["mechanism.noise_multiplier=1e-320"], "bad-value", "mechanism.noise_multiplier"),
        (["mechanism.noise_multiplier=9e-7"], "bad-value", "mechanism.noise_multiplier"),
        (["audit.canary=null"], "missing-key", "audit"),
        (["data={kind: declared, records: 100, features: 16}"], "data-not-at-hand", "audit"),
        (["model=null"], "no-model", "audit"),
        (["audit.canary.count=70"], "bad-value", "audit.canary.count"),
        (["audit.canary.count=15"], "bad-value", "audit.canary.count"),
    ],
)
def test_what_cannot_be_audited_is_said_and_located(tmp_path: Path, overrides: list[str], code: str, path: str) -> None:
    found = diagnostics(tmp_path, *overrides)
    assert (code, path) in [(d.code, ".".join(map(str, d.path))) for d in found]
    assert all(d.span is not None for d in found)


@pytest.mark.parametrize("rate", ["1e-12", "1e-320", "0.999999999"])
def test_rates_at_the_edges_are_planned(tmp_path: Path, rate: str) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(BASE, encoding="utf-8")
    catalog = load_catalog()
    (spec,) = load_specs([path], catalog, [f"mechanism.sampling.rate={rate}"]).specs
    assert prepare(spec, catalog).plan().trials == 1
