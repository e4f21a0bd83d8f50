"""The broken backends are really broken, are told apart from outside, and install as any third party's would."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from dpspec.contract import FrozenMap, TrainingJob
from dpspec.training.canaries import SignBlocks
from dpspec.training.native import NativeTrainer
from dpspec.training.logs import NoiseLog
from dpspec.training.observers import ProjectionObserver

PACKAGE = Path(__file__).parent / "dpspec_faulty"


@pytest.fixture
def faulty(monkeypatch):
    """The package as its own folder offers it, without an installation."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    for name in [name for name in sys.modules if name.split(".")[0] == "dpspec_faulty"]:
        monkeypatch.delitem(sys.modules, name)
    import dpspec_faulty
    import dpspec_faulty.backend

    return dpspec_faulty


@pytest.fixture
def job():
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(20, 5)
    phase = {
        "steps": 60,
        "noise_multiplier": 1.0,
        "clip_norm": 0.5,
        "sampling": {"scheme": "poisson", "rate": 0.2},
    }
    return TrainingJob(
        x=rng.standard_normal((60, 20)).astype(np.float32),
        y=rng.integers(0, 5, 60),
        model=model,
        phases=(FrozenMap(phase),),
        options=FrozenMap({"learning_rate": 0.1, "reduction": "mean"}),
        expected_batch_size=12.0,
        device="cpu",
        seed=5,
    )


def measured(trainer, job):
    seen, log = ProjectionObserver(job, SignBlocks(105, 5, seed=0)), NoiseLog()
    trainer.train(replace(job, observers=(seen, log)))
    return seen.noise_scale(), log


@pytest.mark.parametrize(
    ("trainer", "fault", "ratio"),
    [
        ("FaultyTrainer", "none", 1.0),
        ("FaultyTrainer", "no-noise", 0.0),
        ("FaultyTrainer", "tenth-noise", 0.1),
        ("NoNoiseTrainer", None, 0.0),
        ("TenthNoiseTrainer", None, 0.1),
    ],
)
def test_seen_from_outside(faulty, job, trainer, fault, ratio):
    if fault is not None:
        job = replace(job, options=FrozenMap({**job.options, "fault": fault}))
    scale, log = measured(getattr(faulty.backend, trainer)(), job)
    p_value = chi2.cdf(scale.statistic, scale.degrees)
    assert p_value > 1e-6 if ratio == 1.0 else p_value < 1e-30
    # It reports the noise that it really added.
    declared = scale.degrees / 100 * 105 * 0.5**2
    assert log.sum_of_squares == pytest.approx(ratio**2 * declared, rel=0.1)
    if ratio == 1.0:
        assert scale.ratio == pytest.approx(1.0, abs=0.1)


def test_without_a_fault_it_is_the_native_loop(faulty, job):
    import copy

    twin = replace(job, model=copy.deepcopy(job.model))
    faulty.backend.FaultyTrainer().train(job)
    NativeTrainer().train(twin)
    for a, b in zip(job.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_unknown_fault_is_refused(faulty, job):
    with pytest.raises(ValueError, match="no-noise"):
        faulty.backend.FaultyTrainer().train(replace(job, options=FrozenMap({"fault": "nois"})))


def test_descriptors(faulty):
    backends = {backend.kind: backend for backend in faulty.dpspec_backends()}
    assert set(backends) == {"faulty", "faulty-no-noise", "faulty-tenth-noise"}
    for backend in backends.values():
        jsonschema.Draft202012Validator.check_schema(backend.schema)
        assert all("description" in option for option in backend.schema["properties"].values())
        assert hasattr(faulty.backend, backend.trainer.partition(":")[2])
    assert set(backends["faulty"].schema["properties"]["fault"]["enum"]) == set(faulty.backend._BROKEN)


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
