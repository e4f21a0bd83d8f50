"""Where a GPU runs out of memory, is not there, or is asked for by a number that it has not: pretended ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gpu_cases import job_of, write_case
from support.pretend_gpu import Machine, pretend_gpu

import dpspec
from dpspec.contract.providers import Resumable, TrainingJob
from dpspec.errors import UsageError
from dpspec.executors import PoolRequest, processes
from dpspec.executors.processes import Processes
from dpspec.training.device import devices
from dpspec.training.gradients import flat_model, memory
from dpspec.training.gradients.persample import FlatModel
from dpspec.training.loop.native import NativeTrainer, run_batched
from dpspec.training.measure.residuals import Residuals, SharedPopulations
from dpspec.training.measure.run_evidence import RunLogs
from dpspec_rero.attack import Reader


def limit(machine: Machine, more: int) -> None:
    """From here on the first card has so many bytes beyond what it holds; the driver still says that all is free."""
    card = machine.cards[0]
    torch.cuda.empty_cache()
    card.capacity = card.allocated + more


@pytest.fixture(autouse=True)
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are planned as if there were room: memory runs out although it was asked for beforehand."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**40)


def test_a_batch_is_taken_in_halves() -> None:
    job = job_of("mlp", records=64)
    model = FlatModel(job.model)
    x, y = torch.tensor(job.x), torch.tensor(job.y)
    expected = model.clipped_sum(model.initial(), x, y, 1.0)
    with pretend_gpu() as machine:
        model = FlatModel(job.model, device="cuda")
        state, x, y = model.initial(), x.to("cuda"), y.to("cuda")
        model.look(state, x[:1], y[:1])
        limit(machine, 6000)
        found = model.clipped_sum(state, x, y, 1.0)
        assert machine.cards[0].refusals > 0
        assert torch.allclose(found.sum.cpu(), expected.sum, atol=1e-6)
        assert torch.allclose(found.norms.cpu(), expected.norms)


def test_runs_together_are_taken_in_halves() -> None:
    jobs = [job_of("mlp", records=64, seed=seed) for seed in (1, 2, 3, 4)]
    expected = run_batched(jobs)
    with pretend_gpu() as machine:
        free = run_batched([replace(job, device="cuda") for job in jobs])
        most = machine.cards[0].most_reserved
        del free
    with pretend_gpu(memory=most - 2000) as machine:
        found = run_batched([replace(job, device="cuda") for job in jobs]).cpu()
        assert machine.cards[0].refusals > 0
    assert torch.allclose(found, expected, atol=1e-5)


def reader_of(device: str) -> Reader:
    job = replace(job_of("mlp", records=40, steps=1, sampling={"scheme": "full"}), device=device)
    x, y = torch.tensor(job.x, device=device), torch.tensor(job.y, device=device)
    rows, candidates = torch.arange(33), torch.arange(32, 40)[None]
    return Reader([job], [rows], candidates, x, y, iterates=True)


def read(reader: Reader, device: str) -> np.ndarray:
    state = flat_model.flatten(job_of("mlp").model).to(device)
    (observer,) = reader.observers()
    observer.released(0, state)
    observer.released(1, state * 0.99)
    return reader.scores.cpu().numpy()


def test_the_reader_of_reconstruction_takes_halves() -> None:
    expected = read(reader_of("cpu"), "cpu")
    with pretend_gpu() as machine:
        free = read(reader_of("cuda"), "cuda")
        most = machine.cards[0].most_reserved
    with pretend_gpu(memory=most - 2000) as machine:
        halved = read(reader_of("cuda"), "cuda")
        assert machine.cards[0].refusals > 0
    assert np.abs(expected).max() > 0.0
    assert free.tolist() == expected.tolist()
    assert halved == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_what_does_not_fit_at_all_is_said() -> None:
    with pretend_gpu() as machine:
        job = job_of("mlp", records=64, device="cuda")
        limit(machine, 3000)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            NativeTrainer().train(job)


def test_an_audit_that_does_not_fit_says_so(tmp_path: Path) -> None:
    with pretend_gpu(memory=10_000), pytest.raises(torch.OutOfMemoryError) as raised:
        dpspec.run(write_case("group", tmp_path), store=tmp_path / "store", device="cuda")
    assert memory.ran_out(raised.value)


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """Logs that are still on the GPU are saved with the rest, and a run that goes on ends with the same bits."""

    class KilledError(Exception):
        pass

    def job(**changes: object) -> TrainingJob:
        return job_of("mlp", steps=6, device="cuda", resumable=Resumable(folder=tmp_path, steps=2), **changes)

    def kill(step: int, total: int) -> None:
        if step == 5:
            raise KilledError

    states = []
    with pretend_gpu():
        whole = replace(job(), resumable=None)
        logs = RunLogs(whole)
        NativeTrainer().train(replace(whole, observers=logs.observers))
        states.append((flat_model.flatten(whole.model), [log.state() for log in logs.observers]))
        with pytest.raises(KilledError):
            NativeTrainer().train(job(observers=RunLogs(whole).observers, progress=kill))
        again, seen = job(), []
        logs = RunLogs(again)
        NativeTrainer().train(replace(again, observers=logs.observers, progress=lambda step, total: seen.append(step)))
        states.append((flat_model.flatten(again.model), [log.state() for log in logs.observers]))
    assert seen == [5, 6]
    (first, kept), (second, resumed) = states
    assert torch.equal(first, second)
    for one, other in zip(kept, resumed, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_watchers_of_runs_together_take_halves() -> None:
    def watched(device: str, capacity: int) -> list[float]:
        with pretend_gpu(memory=capacity) as machine:
            jobs = [job_of("mlp", records=64, seed=seed, device=device) for seed in (1, 2)]
            watchers = [Residuals(job) for job in jobs]
            SharedPopulations(watchers, jobs[0].model)
            pairs = zip(jobs, watchers, strict=True)
            run_batched([replace(job, observers=(watcher,)) for job, watcher in pairs])
            most.append(machine.cards[0].most_reserved)
            refusals.append(machine.cards[0].refusals)
            return [float(watcher.squares.sum()) for watcher in watchers]

    most: list[int] = []
    refusals: list[int] = []
    expected = watched("cuda", 2**40)
    assert watched("cuda", most[0] - 2000) == pytest.approx(expected, rel=1e-5)
    assert refusals[0] == 0 < refusals[1]


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    spec = write_case("group", tmp_path)
    with pretend_gpu(cards=2), pytest.raises(UsageError, match=r"'cuda:2' does not exist here \(valid: cpu, cuda:0, "):
        dpspec.run(spec, store=tmp_path / "store", device="cuda:2")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="torch finds no CUDA device"):
            dpspec.run(spec, store=tmp_path / "store", device="cuda")


def test_a_driver_that_fails_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that torch lists and cannot use: its own words, and nothing is trained elsewhere instead."""
    spec = write_case("group", tmp_path)
    with pretend_gpu() as machine:

        def fail(device: object = None) -> None:
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

        monkeypatch.setattr(machine, "card", fail)
        with pytest.raises(RuntimeError, match="no kernel image"):
            dpspec.run(spec, store=tmp_path / "store", device="cuda")
    assert not list((tmp_path / "store").rglob("*.npy"))


def test_all_gpus_of_a_machine_are_used() -> None:
    """A process each, where work is worth it; one where one is named."""
    with pretend_gpu(cards=3):
        assert devices("auto") == devices("cuda") == ("cuda:0", "cuda:1", "cuda:2")
        assert devices("cuda:1") == ("cuda:1",)
        assert devices("cpu") == ("cpu",)
        pool = processes.open_pool(PoolRequest(tasks=9, seconds=1e6))
        assert isinstance(pool, Processes)
        assert pool.size == 3
        pool.close()
        assert processes.open_pool(PoolRequest(tasks=9, seconds=1e6, device="cuda:1")).size == 1
    with pretend_gpu():
        assert devices("auto") == ("cuda",)
