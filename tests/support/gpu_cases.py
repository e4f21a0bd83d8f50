"""Small specs of every mechanism and small runs of every model, for tests of devices."""

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
from dpspec.stores import RECORD
from support.forger.specs import spec_of
from support.record_files import record_files

_RECORDS = {"audit.canary": {"space": "input", "kind": "mislabelled", "count": 16}}


def trials(store: Path) -> dict[str, object]:
    files = record_files(store).items()
    return {
        f"{key}/{name}": json.loads(content)["evidence"] if name == RECORD else content
        for (key, name), content in files
    }


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


#: Gradient descent instead of a released sum.
_DESCENT = {
    "mechanism.private": {"kind": "dp-gd", "eps_noise": 0.2, "loss": "cross-entropy", "lipschitz": 1.0},
    "mechanism.clip_rows": None,
    "mechanism.collection": {"max_ball": 3, "max_cluster": 2},
    "data": {"kind": "digits", "size": 40, "radius": 1.0, "split": {"test": 10}},
    "model": {"kind": "mlp", "hidden": [4]},
    "training": {"learning_rate": 0.5},
    "claims": [{"id": "c", "kind": "approx-dp", "epsilon": 90.0, "delta": 1e-5, "over": "collection"}],
    "audit.repeats": 8,
    "audit.clusters": 1,
    "audit.members": 2,
}

_LAPLACE = {
    "mechanism.noise": "laplace",
    "mechanism.noise_multiplier": None,
    "mechanism.clip_norm": None,
    "claims": [{"id": "c", "kind": "pure-dp", "epsilon": 90.0}],
}

_EMBEDDED = {"form": "residual-only", "dimension": 5, "clip_norm": 1.0, "noise_multiplier": 1.5, "anchors": 10}

_LAPLACE_MIX = {
    "mechanism.noise": "laplace",
    "mechanism.noise_multiplier": 10.0,
    "mechanism.linf_truncation": None,
    "mechanism.mixing": {"threshold": 0.1},
    "mechanism.sampling": {"scheme": "full"},
    "claims": [{"id": "c", "kind": "approx-dp", "epsilon": 90.0, "delta": 1e-4, "min_records": 40}],
}

_POISSON: dict[str, object] = {"mechanism.sampling": {"scheme": "poisson", "rate": 0.3}}

_ADAPTIVE: dict[str, object] = {**_POISSON, "mechanism.clipping": {"scheme": "adaptive", "count_std": 1.0}}

_COUNTED: dict[str, object] = {
    "audit.method": "many-run",
    "audit.runs": 16,
    "audit.canary.count": None,
    "audit.score_counts": True,
    "threat_model.group_size": [1],
    "claims": [{"id": "c", "kind": "approx-dp", "epsilon": 90.0, "delta": 1e-5}],
}

#: By name: the kind of the mechanism, and overrides of its small spec.
_CASES: dict[str, tuple[str, dict[str, object]]] = {
    "group": ("group", _POISSON),
    "group momentum": ("group", {"training.optimizer": {"kind": "momentum", "weight_decay": 0.01}}),
    "group adam": ("group", {"training.optimizer": {"kind": "adam"}, "threat_model.access": "final-model"}),
    "group fixed": ("group", {"mechanism.sampling": {"scheme": "fixed", "batch_size": 10}}),
    "group records": ("group", _RECORDS),
    "group records final": ("group", {**_RECORDS, "threat_model.access": "final-model", "audit.score": "path"}),
    "group many runs": ("group", {"audit.method": "many-run", "audit.runs": 16, "audit.canary.count": None}),
    "group adaptive": ("group", _ADAPTIVE),
    "group adaptive many runs": ("group", {**_ADAPTIVE, **_COUNTED}),
    "per-instance": ("per-instance", {"audit.attack": {"runs": 8}}),
    "per-instance full": ("per-instance", {"mechanism.sampling": {"scheme": "full"}, "audit.attack": {"runs": 8}}),
    "modelmix": ("modelmix", {}),
    "modelmix embedded": ("modelmix", {"mechanism.embedding": _EMBEDDED}),
    "modelmix laplace": ("modelmix", _LAPLACE_MIX),
    "preprocessing": ("preprocessing", _DESCENT),
    "rero": ("rero", _POISSON),
    "rero laplace": ("rero", {**_LAPLACE, "mechanism.scale": 2.0, "mechanism.sensitivity": {"l1": 1.0}}),
    "rero final": ("rero", {"threat_model.access": "final-model"}),
    "opacus": ("group", {**_POISSON, "training.backend": "opacus", "training.sampler": "declared-rate"}),
}

NAMES = tuple(_CASES)


def write_case(name: str, folder: Path, *, steps: int = 4) -> Path:
    kind, changes = _CASES[name]
    place = "mechanism.private.steps" if kind == "preprocessing" else "mechanism.steps"
    path = folder / "audit.yaml"
    path.write_text(_changed(spec_of(kind, trained=True), {**changes, place: steps}), encoding="utf-8")
    return path


#: Image shapes of models that need them, and options for small models.
SHAPES = {"cnn-small": (1, 8, 8), "lenet5": (1, 28, 28), "resnet20": (3, 8, 8), "wide-resnet-16-4": (3, 8, 8)}
OPTIONS = {"mlp": {"hidden": [5]}, "transformer": {"width": 8, "heads": 2, "hidden": 8}}


def job_of(kind: str, *, records: int = 5, steps: int = 2, **changes: object) -> TrainingJob:
    """A short run of a model kind on random rows; ``changes`` replace fields of the job or of its only phase."""
    (model,) = (model for model in MODELS if model.kind == kind)
    shape, chance = SHAPES.get(kind, (6,)), np.random.default_rng(0)
    facts = Facts(records=records, features=prod(shape), classes=3, shape=shape, vocabulary=9 if model.tokens else None)
    module, name = model.factory.split(":")
    x = chance.integers(0, 9, (records, *shape)) if model.tokens else chance.normal(size=(records, *shape))
    phase = {"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.8}}
    phase |= {"sampling": changes.pop("sampling")} if "sampling" in changes else {}
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
