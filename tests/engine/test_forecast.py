"""What a run will take: measured on short trials, and scaled to the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import counting, fragile

from dpspec.contract import Plan, Spec
from dpspec.contract.catalog import Catalog
from dpspec.engine.preparing.prepare import plan
from dpspec.engine.running import forecast as module
from dpspec.engine.running.forecast import Forecast, Measured, forecast, shortened, steps_of
from dpspec.engine.running.run_options import RunOptions
from dpspec.errors import IncompleteError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

HERE = RunOptions(device="cpu")


def specs_of(folder: Path, text: str, catalog: Catalog) -> tuple[Spec, ...]:
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    loaded = load_specs([folder / "spec.yaml"], catalog)
    assert loaded.ok, loaded.diagnostics
    return loaded.specs


GROUP = """\
dpspec: 1
name: small
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 40}
data: {kind: synthetic, records: 200, features: 30, classes: 2}
model: {kind: logistic}
training: {backend: native, learning_rate: 1.0}
threat_model: {adjacency: add-remove}
claims: [{id: one, kind: approx-dp, epsilon: 30.0, delta: 1e-5}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 20}, seed: 1}
"""


@pytest.mark.ci
def test_trials_with_fewer_steps_are_made_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    catalog = load_catalog()
    specs = specs_of(tmp_path, GROUP + "matrix: {mechanism.noise_multiplier: [1.0, 2.0]}\n", catalog)
    told = forecast(specs, [plan(spec, catalog) for spec in specs], catalog, HERE)
    (found,) = told.measured.values()
    assert (found.device, found.steps[0]) == ("cpu", 8)
    assert 8 < found.steps[1] <= 40
    assert told.trials == 2
    assert told.seconds == pytest.approx(2 * (found.chunk_seconds + found.other_seconds))
    assert told.memory_bytes > 50 * 2**20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spec.yaml"]


def test_phases_keep_their_proportions(tmp_path: Path) -> None:
    catalog = load_catalog()
    phases = GROUP.replace("steps: 40}", "phases: [{steps: 30}, {steps: 10, noise_multiplier: 2.0}]}")
    (spec,) = specs_of(tmp_path, phases, catalog)
    assert steps_of(spec) == 40
    assert [phase["steps"] for phase in shortened(spec, catalog, 8).phases] == [6, 2]
    assert shortened(spec, catalog, 40) is spec


def test_a_mechanism_without_steps_is_measured_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fragile.FOLDER, str(tmp_path))
    catalog = fragile.catalog()
    (spec,) = specs_of(tmp_path, counting.EXAMPLE, catalog)
    told = forecast([spec], [plan(spec, catalog)], catalog, HERE)
    assert told.measured["coin"].steps == (1, 1)
    assert {path.name.split("-")[1] for path in tmp_path.glob("ran-*")} == {"0"}


def test_a_trial_that_does_not_survive_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fragile.FOLDER, str(tmp_path))
    (tmp_path / "kill-0").touch()
    catalog = fragile.catalog()
    (spec,) = specs_of(tmp_path, counting.EXAMPLE, catalog)
    with pytest.raises(
        IncompleteError, match=r"worker lost during the measured trial \(its process was killed by SIGKILL"
    ):
        forecast([spec], [plan(spec, catalog)], catalog, HERE)


def test_cells_are_scaled_by_what_their_plans_foresee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(spec: Spec, plan: Plan, catalog: Catalog, options: RunOptions) -> Measured:
        return Measured(
            chunk_seconds=10.0, other_seconds=1.0, memory_bytes=1, device_bytes=0, device="cpu", steps=(8, 20)
        )

    monkeypatch.setattr(module, "_measure", measure)
    monkeypatch.setattr(module, "cores", lambda: 4)
    catalog = counting.catalog()
    specs = specs_of(tmp_path, counting.EXAMPLE + "matrix: {mechanism.epsilon: [0.5, 1.0, 1.5]}\n", catalog)
    plans = [Plan(chunks=((0,), (1,)), seconds=seconds, memory_bytes=0) for seconds in (4.0, 8.0)]
    told = forecast(specs, [*plans, Plan(chunks=(), seconds=0.0, memory_bytes=0)], catalog, HERE)
    assert told == Forecast(
        trials=4,
        seconds=2 * 10.0 + 1.0 + 2 * 20.0 + 1.0,
        at_once=4,
        memory_bytes=1,
        device_bytes=0,
        measured=told.measured,
    )
    assert told.wall_seconds == pytest.approx(told.seconds / 4)
    assert list(told.measured) == [specs[0].name]


def test_memory_is_asked_of_the_device_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "max_memory_reserved", {"cuda:1": 5, "cuda": 3}.__getitem__)
    assert [module._device_peak(device) for device in ("cuda:1", "cuda", "cpu")] == [5, 3, 0]
