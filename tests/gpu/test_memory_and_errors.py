"""Where a GPU runs out of memory, is not there, or is asked for by a number that it has not: pretended ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gpu_cases import job_of, write_case
from support.pretend_gpu import pretend_gpu
from support.record_files import record_files

import dpspec
from dpspec.contract.providers import Resumable, TrainingJob
from dpspec.errors import UsageError
from dpspec.executors import PoolRequest, processes
from dpspec.executors.processes import Processes
from dpspec.training.device import devices
from dpspec.training.gradients import flat_model, memory
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.run_evidence import RunLogs
from dpspec_rero.attack import Reader


@pytest.fixture(autouse=True)
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are planned as if there were room: memory runs out although it was asked for beforehand."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**40)


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


@pytest.mark.ci
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


@pytest.mark.ci
def test_an_audit_that_does_not_fit_says_so(tmp_path: Path) -> None:
    with pretend_gpu(memory=10_000), pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as raised:
        dpspec.run(write_case("group", tmp_path), store=tmp_path / "store", device="cuda")
    assert memory.ran_out(raised.value)


@pytest.mark.ci
def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
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
    assert not record_files(tmp_path / "store")


def test_all_gpus_of_a_machine_are_used() -> None:
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
