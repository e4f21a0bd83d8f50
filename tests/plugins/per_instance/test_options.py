"""Unsupported specs are refused at their place before anything is computed, with a way out."""

from pathlib import Path

import pytest
from support import specs

from dpspec.contract import Diagnostic

BASE = """\
dpspec: 1
name: refused
mechanism:
  {kind: per-instance, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 10}
data: {kind: synthetic, records: 100, features: 16, classes: 4, split: {test: 20}}
model: {kind: linear}
threat_model: {points: [0, 3, 79], population: train, direction: both}
claims:
  - {id: one, kind: per-instance-dp, epsilon: 9.0, delta: 1e-5, record: 3}
audit: {method: many-run, runs: 4}
"""

FRACTION = "claims.one={kind: per-instance-dp, epsilon: 9, delta: 1e-5, fraction: 0.5, population: %s}"
SAMPLE = ["threat_model.points={count: 5}", "claims.one.record=null"]


def diagnostics(tmp_path: Path, *overrides: str) -> list[Diagnostic]:
    return specs.diagnostics(tmp_path, BASE, *overrides)


def test_the_base_is_fine(tmp_path: Path) -> None:
    assert diagnostics(tmp_path) == []
    assert diagnostics(tmp_path, *SAMPLE, FRACTION % "train") == []
    assert diagnostics(tmp_path, "claims.one.record=null", FRACTION % "chosen") == []
    assert diagnostics(tmp_path, "mechanism.composition={exponent: 30}") == []


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        (["mechanism.orders=[2, 1]"], "mechanism.orders.1", "above 1"),
        (["mechanism.composition={exponent: 1}"], "mechanism.composition.exponent", "above 1"),
        (["mechanism.composition={exponent: 1.5}"], "mechanism.composition.exponent", "needs order"),
        (["mechanism.composition={exponent: often}"], "mechanism.composition.exponent", "not a valid exponent"),
        (["mechanism.sampling={scheme: fixed, batch_size: 10}"], "mechanism.sampling.scheme", "drawn independently"),
        (["mechanism.sampling={scheme: shuffled, batch_size: 10}"], "mechanism.sampling.scheme", "drawn independently"),
        (["mechanism.noise_multiplier=0"], "mechanism.noise_multiplier", "no finite divergence"),
        (["training.optimizer={kind: momentum}"], "training.optimizer", "keeps additional state"),
        (["audit.use=modify-training"], "audit.use", "unknown key"),
        (["threat_model.points=[3, 80]"], "threat_model.points.1", "outside the data"),
        (["threat_model.points={count: 81}"], "threat_model.points.count", "exceeds the 80"),
        (["threat_model.points=some"], "threat_model.points", "not a valid points"),
        (["threat_model.points=[0]"], "claims.0.record", "not among the audited"),
        (["threat_model.adjacency=replace-one"], "threat_model.adjacency", "add-remove"),
        (["threat_model.group_size=[1, 4]"], "threat_model.group_size", "not groups"),
        ([*SAMPLE, FRACTION % "test"], "claims.0.population", "is 'train', not 'test'"),
        (["claims.one.record=null", FRACTION % "train"], "claims.0.population", "is 'chosen', not 'train'"),
        (["audit.method=one-run"], "audit.method", "independent runs"),
        (["audit.canary={count: 5}"], "audit.canary", "insert no canaries"),
        (["data={kind: declared, records: 80, features: 16}"], "audit", "only declared"),
        (["model=null"], "audit", "names none"),
        (["threat_model.population=test", "data.split=null"], "threat_model.population", "no test records"),
        (["threat_model.points=all", "data.records=400"], "threat_model.direction", "separate runs"),
        (["audit.attack={most: 0, least: 0}"], "audit.attack", "must select a record"),
        (["audit.attack={most: 2, least: 2}"], "audit.attack", "at most the 3"),
        (["audit.attack={records: [5]}"], "audit.attack.records.0", "not among the audited"),
        (["audit.attack={runs: 2}"], "audit.attack.runs", "fewer than 16"),
        (["audit.attack={}", "threat_model.access=final-model"], "threat_model.access", "final model only"),
        (["audit.mean_rule={batches: [16, 99]}"], "audit.mean_rule.batches.1", "exceeds the 80"),
    ],
)
def test_what_cannot_be_audited_is_located(tmp_path: Path, overrides: list[str], path: str, words: str) -> None:
    found = {".".join(map(str, d.path)): d for d in diagnostics(tmp_path, *overrides)}
    assert path in found
    assert words in found[path].message
    assert found[path].severity == "error"
