"""The faulty backends are faulty, conformance tests detect each fault, and they install like third-party plugins."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.stats.conformance import table
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.run_evidence import RunLogs, WatchedRun
from dpspec.training.measure.scores import ProjectionObserver

PACKAGE = Path(__file__).parent / "dpspec_faulty"

#: The rejected checks of a faulty run, at 1e-6 over all checks: the assumption, and measured or reported.
REJECTED = {
    "no-noise": {("noise-scale", "measured"), ("per-layer-noise", "measured"), ("noise-scale", "reported")},
    "tenth-noise": {("noise-scale", "measured"), ("per-layer-noise", "measured"), ("noise-scale", "reported")},
    "wrong-batch-size": {("noise-scale", "measured"), ("noise-scale", "reported")},
    "noise-without-clip-norm": {("noise-scale", "measured"), ("noise-scale", "reported")},
    "noise-reused": {("independent-noise", "measured"), ("independent-noise", "reported")},
    "noise-seeded-alike": {("independent-noise", "reported")},
    "layers-seeded-alike": {("independent-noise", "measured")},
    "first-step-without-noise": {("noise-scale", "measured"), ("noise-scale", "reported")},
    "last-step-without-noise": {("noise-scale", "measured"), ("noise-scale", "reported")},
    "alternating-noise": {("noise-scale", "measured"), ("noise-scale", "reported")},
    "tenth-step-tenth-noise": {("noise-scale", "measured"), ("noise-scale", "reported")},
    "clip-after-averaging": {("sensitivity", "measured"), ("clipping", "reported")},
    "clip-per-layer": {("clipping", "reported")},
    "layer-unclipped": {("sensitivity", "measured")},
    "clip-accumulated-sum": {("update", "measured"), ("clipping", "reported")},
    "augmented-copies": {("sensitivity", "measured"), ("clipping", "reported")},
    "private-normalisation": {("update", "measured")},
    "large-batch-once": {("sampling", "reported")},
    "shuffled": {("sampling", "reported")},
    "last-batch-dropped": {("sampling", "reported")},
    "same-steps": {("sampling", "reported")},
    "cap-forgotten": {("sampling", "reported")},
}

#: Faults of adaptive clipping: ``tests/plugins/group/test_group_adaptive_clipping.py`` and the controls of the specs.
ADAPTIVE = {"counts-without-noise", "noise-not-raised"}

#: The sampling of faults that need a certain scheme, and of all others.
SCHEMES = {
    "same-steps": {"scheme": "random-allocation", "epoch_steps": 5},
    "cap-forgotten": {"scheme": "truncated-poisson", "rate": 0.2, "max_batch": 75},
}
USUAL = {"scheme": "poisson", "rate": 0.2}
ALL_ENTER = {**SCHEMES["cap-forgotten"], "rate": 1.0}


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE))
    for name in [name for name in sys.modules if name.split(".")[0] == "dpspec_faulty"]:
        monkeypatch.delitem(sys.modules, name)
    import dpspec_faulty
    import dpspec_faulty.backend

    return dpspec_faulty


def make_job(seed=5, canaries=None, sampling=USUAL):
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
    centres = rng.standard_normal((5, 20))
    y = rng.integers(0, 5, 300)
    features = (2.0 + centres[y] + rng.standard_normal((300, 20))) * np.geomspace(0.05, 5.0, 20)
    declared = {"steps": 80, "noise_multiplier": 1.0, "clip_norm": 3.0, "sampling": sampling}
    return TrainingJob(
        x=features.astype(np.float32),
        y=y,
        model=model,
        phases=(FrozenMap(declared),),
        options=FrozenMap({"learning_rate": 0.05, "reduction": "mean"}),
        expected_batch_size=60.0,
        device="cpu",
        seed=seed,
        canaries=canaries,
    )


def audited(trainer, seed=5, sampling=USUAL):
    plain = make_job(seed=seed, sampling=sampling)
    parameters = sum(p.numel() for p in plain.model.parameters())
    directions, coins = SignBlocks(parameters, 60, seed=1), np.arange(60) % 2
    groups = CanaryGroups.planted(directions, torch.from_numpy(coins == 1), 2, 30.0)
    job, twin = make_job(seed, groups, sampling), make_job(seed + 1, sampling=sampling)
    watched, twin_logs = WatchedRun(job, ProjectionObserver(job, directions)), RunLogs(twin)
    trainer.train(replace(job, observers=watched.observers))
    trainer.train(replace(twin, observers=twin_logs.observers))
    return list(table.checks(job.phases, [FrozenMap(watched.evidence(twin_logs, np.full(60, 2), coins))]))


def rejected(checks):
    return {(c.assumption, c.observed) for c in checks if c.p_value * len(checks) <= 1e-6}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("fault", "sampling"),
    [*((fault, SCHEMES.get(fault, USUAL)) for fault in REJECTED), ("cap-forgotten", ALL_ENTER)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_fault_is_detected_by_its_checks(faulty, fault, sampling):
    found = audited(getattr(faulty.backend, faulty.trainer_of(fault))(), sampling=sampling)
    assert REJECTED[fault] <= rejected(found)


@pytest.mark.family
@pytest.mark.parametrize("sampling", [USUAL, *SCHEMES.values(), ALL_ENTER], ids=str)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.ci)])
def test_without_a_fault_nothing_is(faulty, seed, sampling):
    found = audited(faulty.backend.FaultyTrainer("none"), seed=10 * seed, sampling=sampling)
    assert min(check.p_value for check in found) > 1e-4
    assert {c.assumption for c in found} >= {a for pairs in REJECTED.values() for a, _ in pairs} | {"steps"}


@pytest.mark.slow
def test_every_check_keeps_its_level(faulty):
    """Over eighty right runs, no test rejects at 5% more often than chance allows (1e-4 for each)."""
    counts = {}
    for seed in range(80):
        for check in audited(faulty.backend.FaultyTrainer("none"), seed=100 + 2 * seed):
            name = (check.assumption, check.observed, check.note.partition(", least in")[0])
            counts[name] = counts.get(name, 0) + (check.p_value <= 0.05)
    assert len(counts) > 25
    assert max(counts.values()) <= binom.ppf(1 - 1e-4, 80, 0.05), counts


def test_without_a_fault_it_is_the_native_loop(faulty):
    one, other = make_job(), make_job()
    faulty.backend.FaultyTrainer().train(one)
    NativeTrainer().train(other)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_descriptors(faulty):
    backends = {backend.kind: backend for backend in faulty.dpspec_backends()}
    assert set(backends) == {"faulty", *(f"faulty-{fault}" for fault in faulty.FAULTS)}
    for backend in backends.values():
        jsonschema.Draft202012Validator.check_schema(backend.schema)
        assert all("description" in option for option in backend.schema["properties"].values())
        assert hasattr(faulty.backend, backend.trainer.partition(":")[2])
    assert set(backends["faulty"].schema["properties"]["fault"]["enum"]) == set(faulty.backend.BROKEN)
    assert set(REJECTED) | ADAPTIVE == set(faulty.FAULTS)


@pytest.mark.ci
def test_it_installs_with_one_command(tmp_path):
    """Offline: hatchling and dpspec are at hand already, so that nothing is fetched."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    subprocess.run([*command, "--no-deps", "--target", str(tmp_path), str(PACKAGE)], check=True, timeout=120)
    code = """
import sys
from importlib.metadata import entry_points
(entry,) = entry_points(group="dpspec", name="faulty")
module = entry.load()
assert module.DPSPEC_API == 1
assert module.__file__.startswith(sys.argv[1]), module.__file__
assert [b.kind for b in module.dpspec_backends()]
assert "torch" not in sys.modules
"""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}
    )
