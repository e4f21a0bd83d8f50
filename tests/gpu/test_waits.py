"""How often a step waits for its GPU: bounded, counted on a pretended one between runs of two lengths."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.gpu_cases import job_of
from support.pretend_gpu import Account, pretend_gpu

from dpspec.contract import Observer, TrainingJob
from dpspec.contract.attacks import Records
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.device import TransferQueue, fetch
from dpspec.training.loop.native import NativeTrainer, run_batched
from dpspec.training.measure.run_evidence import RunLogs, WatchedRun
from dpspec.training.measure.scores import ProjectionObserver, RecordScores
from dpspec_per_instance.trials import RecordAttack, Target

#: Of the runs that are compared, both shorter than a block that is fetched at once.
FEW, MANY = 2, 6

Watch = Callable[[TrainingJob], Sequence[Observer]]


def nobody(job: TrainingJob) -> Sequence[Observer]:
    return ()


def adversary_of_records(job: TrainingJob) -> Sequence[Observer]:
    return (RecordScores(job, Records(job.x[:3], job.y[:3]), np.ones(3, dtype=np.int64), 2),)


def adversary_of_one_record(job: TrainingJob) -> Sequence[Observer]:
    x, y = torch.tensor(job.x, device=job.device), torch.tensor(job.y, device=job.device)
    return (RecordAttack(job, Target(job, (x[1:], y[1:]), (x[:1], y[:1]))),)


def directions(job: TrainingJob) -> SignBlocks:
    return SignBlocks(33, 6, seed=0, device=job.device)


def with_canaries(job: TrainingJob) -> TrainingJob:
    present = torch.ones(6, dtype=torch.bool, device=job.device)
    return replace(job, canaries=CanaryGroups.planted(directions(job), present, 1, 10.0))


def counted(steps: int, watch: Watch, **changes: object) -> Account:
    with pretend_gpu() as machine:
        job = with_canaries(job_of("mlp", steps=steps, device="cuda", **changes))
        observers = tuple(watch(job))
        NativeTrainer().train(replace(job, observers=observers))
        return machine.account


@pytest.mark.family
@pytest.mark.parametrize(
    ("watch", "most"),
    [
        (nobody, 1),
        (lambda job: RunLogs(job).observers, 1),
        (adversary_of_one_record, 2),
        (lambda job: WatchedRun(job, ProjectionObserver(job, directions(job), drawn=True)).observers, 2),
        (adversary_of_records, 3),
    ],
)
def test_waits_in_a_step(watch: Watch, most: int) -> None:
    """One wait is training's own, to learn whether all gradients of a chunk are finite; so has each chunk of a look."""
    more = counted(MANY, watch).since(counted(FEW, watch))
    assert more.waits.total() <= most * (MANY - FEW), more.waits


@pytest.mark.ci
def test_runs_together_wait_as_often_as_one() -> None:
    def more(runs: int) -> int:
        accounts = []
        for steps in (FEW, MANY):
            with pretend_gpu() as machine:
                jobs = [job_of("mlp", steps=steps, device="cuda", seed=seed) for seed in range(runs)]
                run_batched([replace(job, observers=RunLogs(job).observers) for job in jobs])
                accounts.append(machine.account)
        return accounts[1].since(accounts[0]).waits.total()

    assert more(2) == more(6) == MANY - FEW


def test_blocks_are_fetched_bit_by_bit_and_in_order() -> None:
    chance = torch.Generator().manual_seed(1)
    numbers = [
        torch.rand(3, 2, generator=chance),
        torch.rand((), generator=chance, dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.arange(4)[::2],
        torch.tensor(float("nan")),
        torch.zeros(0, 3),
    ]
    taken: list[tuple[object, ...]] = []
    with pretend_gpu() as machine:
        away = [tensor.to("cuda") for tensor in numbers]
        before = machine.account.now()
        found = fetch([*away, numbers[0]])
        assert machine.account.since(before).waits.total() == 1
        queue = TransferQueue()
        queue.add(lambda *values: taken.append(values), away[1], "first", 1)
        queue.add(lambda *values: taken.append(values), away[3])
        assert taken == []
        queue.flush()
        queue.flush()
    for array, tensor in zip(found, [*numbers, numbers[0]], strict=True):
        assert array.dtype == tensor.numpy().dtype
        assert array.shape == tensor.shape
        assert array.tobytes() == tensor.numpy().tobytes()
    assert [values[1:] for values in taken] == [("first", 1), ()]
    assert (taken[0][0], taken[1][0].tolist()) == (float(numbers[1]), [0, 2])  # type: ignore[attr-defined]


def test_a_block_is_fetched_when_it_is_full() -> None:
    taken: list[float] = []
    with pretend_gpu() as machine:
        queue, one = TransferQueue(), torch.ones((), device="cuda")
        for _ in range(600):
            queue.add(lambda value: taken.append(float(value)), one)
        assert len(taken) == 512
        assert machine.account.waits.total() == 2
        queue.clear()
        queue.flush()
    assert len(taken) == 512
