"""Specs as text or as documents: loaded, checked or audited in a folder."""

import copy
from pathlib import Path
from typing import Any

from dpspec.contract import Diagnostic, FrozenMap, Section, Spec, ThreatModel
from dpspec.contract.catalog import Catalog
from dpspec.contract.results import AuditResult
from dpspec.engine.preparing.prepare import check
from dpspec.engine.running.runner import run
from dpspec.engine.running.train import RunOptions
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

#: Bounds of one full batch per step, which need no rows.
BOUNDS = """\
dpspec: 1
name: ordinary
mechanism: {kind: group, noise_multiplier: 4.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 10}
data: {kind: declared, records: 100}
claims:
  - {id: one, kind: approx-dp, epsilon: 8.0, delta: 1e-6}
"""

#: Bounds of users with at most five records each, single and in pairs.
DECLARED = """\
dpspec: 1
name: users
mechanism: {kind: group, noise_multiplier: 4, clip_norm: 1, sampling: {scheme: poisson, rate: 0.01}, steps: 50}
data: {kind: declared, records: 1000, records_per_user: 5}
threat_model: {unit: user, group_size: [1, 2]}
claims:
  - {id: user, kind: approx-dp, epsilon: 9, delta: 1e-5}
  - {id: pair, kind: membership, advantage: 0.9, group_size: 2}
  - {id: one-mu, kind: gdp, mu: 20}
"""

_DOCUMENT: dict[str, Any] = {
    "dpspec": 1,
    "name": "audited",
    "mechanism": {
        "kind": "group",
        "noise_multiplier": 2.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "poisson", "rate": 0.15},
        "steps": 100,
    },
    "data": {"kind": "synthetic", "records": 200},
    "model": {"kind": "linear"},
    "claims": [{"id": "one", "kind": "approx-dp", "epsilon": 4.0, "delta": 1e-5}],
}


def document(**blocks: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(_DOCUMENT)
    for name, block in blocks.items():
        made[name] = {**made.get(name, {}), **block}
    return made


def bare(**fields: Any) -> Spec:
    """Return a spec as from the loader, without its text."""
    empty: dict[str, Any] = {
        "name": "demo",
        "description": "",
        "digest": "0" * 64,
        "model": None,
        "claims": (),
        "audit": None,
        "mechanism": Section("demo"),
        "data": Section("declared"),
        "training": Section("native"),
        "threat_model": ThreatModel(),
        "cell": FrozenMap(),
        "document": FrozenMap(),
    }
    return Spec(**{**empty, **fields})


#: As ``--device cpu``.
ON_CPU = RunOptions(device="cpu")


def written(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def loaded(path: Path, *overrides: str) -> tuple[Spec, ...]:
    found = load_specs([path], load_catalog(), overrides)
    assert found.ok, found.diagnostics
    return found.specs


def spec_of(folder: Path, text: str, *overrides: str) -> Spec:
    return loaded(written(folder, text), *overrides)[0]


def audit_of(path: Path, store: Path, *overrides: str) -> AuditResult:
    """Run the first audit of a file on the CPU, with trials in the folder ``store``."""
    return run(loaded(path, *overrides), load_catalog(), store=Store(store), options=ON_CPU).audits[0]


def audited(folder: Path, text: str, *overrides: str) -> AuditResult:
    return audit_of(written(folder, text), folder / "store", *overrides)


def diagnosed(path: Path, *overrides: str, catalog: Catalog | None = None) -> list[Diagnostic]:
    """Return errors and warnings of the language, or of the mechanism if the language has none."""
    catalog = catalog or load_catalog()
    found = load_specs([path], catalog, overrides)
    if not found.ok:
        return list(found.diagnostics)
    return [d for spec in found.specs for d in check(spec, catalog)]


def diagnostics(folder: Path, text: str, *overrides: str) -> list[Diagnostic]:
    return diagnosed(written(folder, text), *overrides)
