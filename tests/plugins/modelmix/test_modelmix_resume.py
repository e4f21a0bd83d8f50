"""A trial that is killed goes on in the middle of its run, the adversary with it, and ends with the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpspec.contract import Resumable, Trial
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

TEXT = """\
dpspec: 1
name: resumed
mechanism:
  kind: modelmix
  noise_multiplier: 1.5
  clip_norm: 0.5
  mixing: {threshold: 0.5}
  sampling: {scheme: poisson, rate: 0.2}
  steps: 12
data: {kind: synthetic, records: 60, features: 20, classes: 4, seed: 2, split: {test: 0.2}}
model: {kind: linear}
training: {learning_rate: 0.5}
claims:
  - {id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: one-hot, count: 20}, twins: {}, seed: 11}
"""

KINDS = {
    "plain": (),
    "literal, truncated": ("mechanism.mixing.enforcement=literal", "mechanism.linf_truncation=4"),
    "embedded": (
        "mechanism.embedding={form: residual-only, dimension: 5, clip_norm: 1.0, noise_multiplier: 1.2, anchors: 10}",
    ),
    "laplace": ("mechanism.noise=laplace", "mechanism.mixing.threshold=2.0"),
}


@dataclass
class Watch:
    """Counts the steps of every run, and dies at one of them."""

    what: str = ""
    deadly: int = 0
    hard: bool = False

    def __post_init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __call__(self, done: int, what: str) -> None:
        self.seen.append((what, done))
        if (what, done) == (self.what, self.deadly):
            if self.hard:
                os.kill(os.getpid(), signal.SIGKILL)
            raise MemoryError


def trial_of(folder: Path, watch: Watch, overrides: tuple[str, ...] = (), *, kept: bool = True) -> Trial:
    """One trial, saved every third step."""
    folder.mkdir(exist_ok=True)
    path = folder / "resumed.yaml"
    path.write_text(TEXT, encoding="utf-8")
    loaded = load_specs([path], load_catalog(), overrides)
    assert loaded.ok, loaded.diagnostics
    prepared = prepare(loaded.specs[0], load_catalog())
    inputs = prepared.audit.trial_inputs(loaded.specs[0])

    class Context(RunContext):
        def resumable(self, index: int) -> Resumable | None:
            return Resumable(folder=folder / "runs", steps=3) if kept else None

        def progress(self, done: int, total: int, what: str = "", **more: Any) -> None:
            watch(done, what)

    (trial,) = prepared.audit.trials(inputs, Context(prepared, load_catalog(), inputs, device="cpu"), [0])
    return trial


def assert_same(first: Trial, second: Trial) -> None:
    assert first.evidence == second.evidence
    for name, array in first.arrays.items():
        assert np.array_equal(array, second.arrays[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_trial_ends_as_one_that_never_stopped(tmp_path: Path, kind: str) -> None:
    whole = trial_of(tmp_path / "whole", Watch(), KINDS[kind], kept=False)
    with pytest.raises(MemoryError):
        trial_of(tmp_path / "killed", Watch("training", 8), KINDS[kind])
    watch = Watch()
    again = trial_of(tmp_path / "killed", watch, KINDS[kind])
    assert_same(whole, again)
    assert [done for what, done in watch.seen if what == "training"] == [7, 8, 9, 10, 11, 12]


def test_killed_in_a_twin(tmp_path: Path) -> None:
    whole = trial_of(tmp_path / "whole", Watch(), kept=False)
    with pytest.raises(MemoryError):
        trial_of(tmp_path / "killed", Watch("same-noise twin", 5))
    watch = Watch()
    assert_same(whole, trial_of(tmp_path / "killed", watch))
    assert {what for what, _ in watch.seen} == {"same-noise twin", "same-epsilon twin"}
    assert [done for what, done in watch.seen if what == "same-noise twin"] == list(range(4, 13))


@pytest.mark.ci
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    whole = trial_of(tmp_path / "whole", Watch(), kept=False)
    code = (
        "import importlib.util, pathlib, sys\n"
        f"found = importlib.util.spec_from_file_location('resumed', {str(Path(__file__))!r})\n"
        "module = importlib.util.module_from_spec(found)\n"
        "sys.modules['resumed'] = module\n"
        "found.loader.exec_module(module)\n"
        f"module.trial_of(pathlib.Path({str(tmp_path / 'killed')!r}), module.Watch('training', 7, True))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    watch = Watch()
    assert_same(whole, trial_of(tmp_path / "killed", watch))
    assert next(watch.seen.__iter__()) == ("training", 7)
