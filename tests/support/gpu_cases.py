"""Small audits of every mechanism, as specs, and small runs of every model: what a device is tried on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np
import yaml

from dpspec.contract import Facts, FrozenMap, TrainingJob
from dpspec.models.architectures import MODELS

_DATA = "digits, size: 40, split: {test: 10}"

_GROUP = """\
dpspec: 1
name: group
mechanism: {kind: group, noise_multiplier: 3.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.3}, steps: STEPS}
data: {kind: DATA}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}
threat_model: {adjacency: add-remove, access: all-iterates, group_size: 1}
claims: [{id: c, kind: approx-dp, epsilon: 30.0, delta: 1e-5}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 24}, seed: 7}
"""

_PER_INSTANCE = """\
dpspec: 1
name: per-instance
mechanism:
  kind: per-instance
  noise_multiplier: 3.6
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.3}
  steps: STEPS
  orders: [2, 4]
  composition: {observe_every: 4}
data: {kind: DATA}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {points: {count: 4, seed: 1}, direction: both}
claims: [{id: c, kind: approx-dp, epsilon: 90.0, delta: 1e-5}]
audit: {method: many-run, runs: 1, seed: 2, attack: {most: 1, least: 0, runs: 16, looks: 2}}
"""

_MODELMIX = """\
dpspec: 1
name: modelmix
mechanism:
  kind: modelmix
  noise_multiplier: 2.0
  clip_norm: 1.0
  linf_truncation: 25
  mixing: {threshold: 0.065}
  sampling: {scheme: poisson, rate: 0.3}
  steps: STEPS
data: {kind: DATA}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}
claims: [{id: c, kind: approx-dp, epsilon: 90.0, delta: 1e-4}]
audit: {method: one-run, canary: {space: gradient, kind: one-hot, count: 20}, twins: {delta: 1e-4}, seed: 1}
"""

_LAPLACE_MIX = """\
dpspec: 1
name: modelmix
mechanism:
  kind: modelmix
  noise: laplace
  noise_multiplier: 10.0
  clip_norm: 1.0
  mixing: {threshold: 0.1}
  sampling: {scheme: full}
  steps: STEPS
data: {kind: DATA}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}
claims: [{id: c, kind: approx-dp, epsilon: 90.0, delta: 1e-4, min_records: 40}]
audit: {method: one-run, canary: {space: gradient, kind: one-hot, count: 20}, twins: {delta: 1e-4}, seed: 1}
"""

_PREPROCESSING = """\
dpspec: 1
name: preprocessing
mechanism:
  kind: preprocessing
  pipeline: [{deduplicate: 0.01}]
  private: {kind: dp-gd, eps_noise: 0.2, steps: STEPS, loss: cross-entropy, lipschitz: 1.0}
  collection: {max_ball: 3, max_cluster: 2}
data: {kind: digits, size: 40, radius: 1.0, split: {test: 10}}
model: {kind: mlp, hidden: [4]}
training: {learning_rate: 0.5}
threat_model: {adjacency: replace-one}
claims: [{id: c, kind: approx-dp, epsilon: 90.0, delta: 1e-5, over: collection}]
audit: {method: many-run, runs: 2, repeats: 8, clusters: 1, members: 2, seed: 1}
"""

_RERO = """\
dpspec: 1
name: rero
mechanism:
  kind: rero
  noise_multiplier: 0.7
  clip_norm: 0.1
  sampling: {scheme: poisson, rate: 0.3}
  steps: STEPS
  baselines: []
data: {kind: DATA}
model: {kind: linear}
training: {backend: native, learning_rate: 0.5}
threat_model: {access: all-iterates, prior: {candidates: 4}}
claims: [{id: c, kind: rero, kappa: 0.25, gamma: 0.9}]
audit: {method: many-run, runs: 4, seed: 1}
"""

_RECORDS = {"audit.canary": {"space": "input", "kind": "mislabelled", "count": 12}}


def trials(store: Path) -> dict[str, object]:
    """What a store holds of trials: their evidence, and digests of their arrays."""
    found: dict[str, object] = {}
    for file in store.rglob("*"):
        name = file.relative_to(store).as_posix()
        if file.suffix == ".npy":
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        elif file.suffix == ".json":
            record = json.loads(file.read_text(encoding="utf-8"))
            if "evidence" in record:
                found[name] = record["evidence"]
    return found


def _changed(text: str, changes: Mapping[str, object]) -> str:
    document = yaml.safe_load(text)
    for path, value in changes.items():
        *outer, last = path.split(".")
        at = document
        for key in outer:
            at = at.setdefault(key, {})
        if value is None:
            at.pop(last, None)
        else:
            at[last] = value
    return yaml.safe_dump(document, sort_keys=False)


#: By name: what it is made of, and what is changed of that.
_CASES: dict[str, tuple[str, dict[str, object]]] = {
    "group": (_GROUP, {}),
    "group momentum": (
        _GROUP,
        {"training.optimizer": {"kind": "momentum", "nesterov": True, "weight_decay": 0.01}},
    ),
    "group adam": (_GROUP, {"training.optimizer": {"kind": "adam"}, "threat_model.access": "final-model"}),
    "group fixed": (_GROUP, {"mechanism.sampling": {"scheme": "fixed", "batch_size": 10}}),
    "group records": (_GROUP, _RECORDS),
    "group records final": (_GROUP, {**_RECORDS, "threat_model.access": "final-model", "audit.score": "path"}),
    "group many runs": (_GROUP, {"audit.method": "many-run", "audit.runs": 16, "audit.canary.count": None}),
    "per-instance": (_PER_INSTANCE, {}),
    "per-instance full": (_PER_INSTANCE, {"mechanism.sampling": {"scheme": "full"}}),
    "modelmix": (_MODELMIX, {}),
    "modelmix embedded": (
        _MODELMIX,
        {
            "mechanism.embedding": {
                "form": "residual-only",
                "dimension": 5,
                "clip_norm": 1.0,
                "noise_multiplier": 1.5,
                "anchors": 10,
            },
        },
    ),
    "modelmix laplace": (_LAPLACE_MIX, {}),
    "preprocessing": (_PREPROCESSING, {}),
    "rero": (_RERO, {}),
    "rero laplace": (
        _RERO,
        {
            "mechanism.noise": "laplace",
            "mechanism.noise_multiplier": None,
            "mechanism.clip_norm": None,
            "mechanism.scale": 2.0,
            "mechanism.sensitivity": {"l1": 1.0},
            "claims": [{"id": "c", "kind": "pure-dp", "epsilon": 90.0}],
        },
    ),
    "rero final": (_RERO, {"threat_model.access": "final-model"}),
    "opacus": (_GROUP, {"training.backend": "opacus", "training.sampler": "declared-rate"}),
}

NAMES = tuple(_CASES)


def write_case(name: str, folder: Path, *, steps: int = 4) -> Path:
    text, changes = _CASES[name]
    text = text.replace("STEPS", str(steps)).replace("DATA", _DATA)
    path = folder / "audit.yaml"
    path.write_text(_changed(text, changes), encoding="utf-8")
    return path


#: Images of 28 x 28 for those that need them, and options that make the others small.
SHAPES = {"cnn-small": (1, 28, 28), "lenet5": (1, 28, 28), "resnet20": (3, 8, 8), "wide-resnet-16-4": (3, 8, 8)}
OPTIONS = {"mlp": {"hidden": [5]}, "tabular-mlp": {"hidden": [5]}, "transformer": {"width": 8, "heads": 2, "hidden": 8}}


def job_of(kind: str, *, records: int = 5, steps: int = 2, **changes: object) -> TrainingJob:
    """A short run of a model kind on rows of no meaning; the rest replaces fields of the job or of its one phase."""
    (model,) = (model for model in MODELS if model.kind == kind)
    shape, chance = SHAPES.get(kind, (6,)), np.random.default_rng(0)
    facts = Facts(records=records, features=prod(shape), classes=3, shape=shape, vocabulary=9 if model.tokens else None)
    module, name = model.factory.split(":")
    x = chance.integers(0, 9, (records, *shape)) if model.tokens else chance.normal(size=(records, *shape))
    phase = {"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.8}}
    phase |= {key: changes.pop(key) for key in ("clipping", "noise", "sampling") if key in changes}
    job = TrainingJob(
        x=x.astype(np.float32),
        y=chance.integers(0, 3, records),
        model=getattr(import_module(module), name)(FrozenMap(OPTIONS.get(kind, {})), facts).build(1),
        phases=(FrozenMap(phase),),
        options=FrozenMap({"learning_rate": 0.5, "reduction": "mean"}),
        expected_batch_size=4.0,
        device="cpu",
        seed=11,
    )
    return replace(job, **changes)  # type: ignore[arg-type]
