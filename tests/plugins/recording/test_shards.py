"""Trainings whose parameters FSDP2 shards: sound ones are proved as in one process, and faults are found."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import FSDPOptimizerFastGradientClipping as Optimizer
from support.checked_runs import Question, check_run
from support.ranks import Ranked, after_scaling, dealt, infinite, killed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from dpspec.errors import RecordingError, UsageError
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.fsdp2 import refuse_precision, shard_of
from dpspec_recording.judge import joined_checks
from dpspec_recording.judge.bounds import phases_of
from dpspec_recording.judge.executed_run import observe
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.gradient_parameters.passes import OTHER_PARAMETERS
from dpspec_recording.observers.update_rule.noisy_gradients import MEDDLED
from dpspec_recording.observers.update_rule.parameters import MOVED
from dpspec_recording.outcomes.conditions import PER_RECORD_CLIPPING
from dpspec_recording.ranks import rank_watch
from dpspec_recording.shards import local

pytestmark = pytest.mark.filterwarnings("ignore")

Script = Callable[[Ranked, int], None]
QUESTION = Question(delta=1e-5, epsilon=50.0, accept=("not-replayed",))


def divided(training: Ranked, factor: float) -> None:
    """The sum over the ranks is divided by the factor, and not by their number."""
    for module in training.model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(True)


SOUND: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw": {"optimizer": "adamw"},
    # all ranks draw the same noise for whole parameters, and each takes its rows
    "one-noise": {"prepare": lambda t, rank: setattr(t.private, "generator", torch.Generator().manual_seed(5))},
    "sum": {"reduction": "sum", "prepare": lambda t, rank: divided(t, 1.0)},
}


def _train(place: Path, names: Sequence[str]) -> Path:
    first, *further = (Ranked(place / name, sharded=True, **{"batch": 100, **SOUND[name]}) for name in names)
    assert first.run(*further) == [0, 0]
    return place


@pytest.fixture(scope="module")
def sgd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of the plainest sound training on two ranks."""
    return _train(tmp_path_factory.mktemp("sound"), ["sgd"]) / "sgd"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the other sound trainings, by name."""
    return _train(tmp_path_factory.mktemp("sound"), [name for name in SOUND if name != "sgd"])


def test_a_sound_training_is_proved(sgd: Path) -> None:
    _require_proof(sgd)


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in SOUND if name != "sgd"])
def test_another_sound_training_is_proved(name: str, others: Path) -> None:
    _require_proof(others / name)


def _require_proof(training: Path) -> None:
    found = check_run(training, QUESTION)
    assert (found.verdict, found.fine, found.rejected) == ("proved", True, set())
    assert {"joined-ranks", "secret-randomness", PER_RECORD_CLIPPING} <= set(found.audit.recording.assumes)


@pytest.mark.ci
def test_four_ranks_are_proved_as_one_process(tmp_path: Path) -> None:
    made = {"batch": 150, "epochs": 8}
    assert Ranked(tmp_path / "four", sharded=True, world=4, **made).run() == [0] * 4
    assert Ranked(tmp_path / "one", world=1, **made).run() == [0]
    found, single = (check_run(tmp_path / name, QUESTION) for name in ("four", "one"))
    assert found.verdict == single.verdict == "proved"
    assert phases_of(found.run) == phases_of(single.run)
    assert found.costs[1].interval.upper == pytest.approx(single.costs[1].interval.upper, rel=1e-6)


def test_a_joined_step_has_the_rows_of_all_ranks(sgd: Path) -> None:
    run, ranks = observe(sgd)[0], [RunFolder.open(sgd / f"rank-{rank}", OBSERVERS) for rank in (0, 1)]
    assert [name for name, _ in run.header.layers[:2]] == ["0.weight on rank 0", "0.bias on rank 0"]
    assert run.header.parameters == 16 * 7 + 2 * 17
    steps = zip(*(list(one.steps())[:-1] for one in ranks), *(list(one.internal()) for one in ranks), strict=True)
    for number, (made, whole) in enumerate(zip(steps, run.folder.internal(), strict=True)):
        first, second, mine, theirs = made
        assert run["noise_squares"][number] == pytest.approx(first.noise_squares + second.noise_squares)
        assert first.noise_squares > 0.0 < second.noise_squares
        assert run["divisor"][number] == 2 * first.divisor == 100.0
        assert whole.sum_norm == pytest.approx(np.hypot(mine.sum_norm, theirs.sum_norm))
        assert mine.rank.parameters == theirs.rank.parameters != mine.rank.gradients == bytes(8)
        sums = [one.rank.own + other.rank.own for one, other in ((mine, theirs),)]
        assert np.allclose(sums[0], mine.rank.total + theirs.rank.total, atol=1e-4)


def without_noise(self: Any) -> None:
    for p in self.params:
        p.grad = self.grad_state[p]["summed_grad"].clone()


def no_noise(training: Ranked, rank: int, ranks: tuple[int, ...] = (0, 1), step: int = 0) -> None:
    """Of some ranks, at all steps or at one."""
    original, steps = Optimizer.add_noise, []

    def add_noise(self: Any) -> None:
        steps.append(1)
        (without_noise if rank in ranks and step in (0, len(steps)) else original)(self)

    Optimizer.add_noise = add_noise


def no_noise_for_a_bias_of_a_rank(training: Ranked, rank: int) -> None:
    original = Optimizer.add_noise

    def add_noise(self: Any) -> None:
        original(self)
        bias = self.params[1]
        if rank == 1:
            bias.grad = self.grad_state[bias]["summed_grad"].clone()

    Optimizer.add_noise = add_noise


def equal_noise_for_different_rows(training: Ranked, rank: int) -> None:
    generator = torch.Generator().manual_seed(5)

    def add_noise(self: Any) -> None:
        for p in self.params:
            noise = torch.normal(0.0, 0.5 / 2, size=local(p).shape, generator=generator)
            p.grad = self.grad_state[p]["summed_grad"].clone()
            local(p.grad).add_(noise)

    Optimizer.add_noise = add_noise


def overlapping_noise(training: Ranked, rank: int) -> None:
    """The ranks draw from one seed, and rank 1 takes numbers that rank 0 took a moment before."""
    training.private.generator = torch.Generator().manual_seed(5)
    torch.randn(48 * (1 - rank), generator=training.private.generator)


def rows_of_another_model(training: Ranked, rank: int) -> None:
    """Rank 1 puts the rows of a model that was trained without privacy into its own."""
    for number, (x, y) in enumerate(training.loader):
        training.step(x, y)
        if rank == 1 and number == 1:
            local(training.private.params[0]).detach().copy_(torch.randn(8, 6))


def changed_sum(training: Ranked, rank: int) -> None:
    """Between backward pass and sum, a hook of FSDP2 on the reduced gradient multiplies the rows of rank 1."""
    if rank == 1:
        training.private.params[0].register_post_accumulate_grad_hook(lambda p: local(p.grad).mul_(3.0))


def skips(training: Ranked, rank: int) -> None:
    for number, (x, y) in enumerate(training.loader):
        training.private.zero_grad()
        training.criterion(training.model(x), y).backward()
        if not (rank == 1 and number == 2):
            training.private.step()


def changed_after_gathering(training: Ranked, rank: int) -> None:
    """Rank 1 computes its gradients with other weights than those that it keeps."""

    def change(module: Any, _: Any) -> None:
        module.weight.data[-1].add_(0.1 * rank)

    training.model._module[0].register_forward_pre_hook(change)


def two_batches_in_a_step(training: Ranked, rank: int) -> None:
    """Gradient accumulation by two backward passes: Opacus drops the first gradient, and its accountant a batch."""
    batches = list(training.loader)
    for (x, y), last in zip(batches[::2], batches[1::2], strict=False):
        training.private.zero_grad()
        training.criterion(training.model(x), y).backward()
        training.step(*last)


def seeds_of_epoch_and_rank(training: Ranked, rank: int) -> None:
    """The second rank draws in an epoch as the first does in the next."""
    for epoch in range(2):
        torch.manual_seed(77 + epoch + rank)
        for x, y in training.loader:
            training.step(x, y)


def rows_of_the_other_rank(training: Ranked, rank: int) -> None:
    """Each rank gathers the parameters before a pass, and writes to the rows of the other one."""
    for x, y in training.loader:
        for module in training.model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
        training.model._module[0].weight.data[8 * (1 - rank)].add_(1.0)
        training.step(x, y)


#: By name: the script that prepares a training on every rank, and the test that rejects it.
FAULTS: dict[str, tuple[Script, str]] = {
    "changed after gathering": (changed_after_gathering, OTHER_PARAMETERS.title),
    "no noise": (no_noise, joined_checks.EACH_NOISE.title),
    "noise on one shard": (lambda t, rank: no_noise(t, rank, (1,)), joined_checks.EACH_NOISE.title),
    "one step without noise on a shard": (lambda t, rank: no_noise(t, rank, (1,), 3), joined_checks.EACH_NOISE.title),
    "less noise on a rank": (
        lambda t, rank: setattr(t.private, "noise_multiplier", 0.3 if rank else 1.0),
        joined_checks.OTHER_SETUP.title,
    ),
    "no noise for a bias of a rank": (no_noise_for_a_bias_of_a_rank, "chi-square of the quietest layer"),
    "equal noise for different rows": (equal_noise_for_different_rows, joined_checks.ALIKE.title),
    "overlapping noise": (overlapping_noise, joined_checks.SEEDS.title),
    "other clip of norms": (
        lambda t, rank: setattr(t.model, "max_grad_norm", 0.5 + rank),
        joined_checks.OTHER_SETUP.title,
    ),
    "dealt": (dealt, "assumed Poisson sampling, although the loader's batches are shuffled"),
    "changed before the step": (
        lambda t, rank: after_scaling(t, lambda optimizer: rank and local(optimizer.params[0].grad).mul_(0.1)),
        MEDDLED.title,
    ),
    "changed sum": (changed_sum, joined_checks.NO_SUM.title),
    "unreduced": (lambda t, rank: divided(t, 0.5), joined_checks.NO_SUM.title),
}

#: The same for scripts of the recorded block.
WITHIN: dict[str, tuple[Script, str]] = {
    "two batches in a step": (two_batches_in_a_step, "steps with several drawn batches"),
    "rows of another model": (rows_of_another_model, MOVED.title),
    "skips": (skips, joined_checks.SHORTER.title),
    "rows of the other rank": (rows_of_the_other_rank, joined_checks.UNEQUAL.title),
    "seeds of epoch and rank": (seeds_of_epoch_and_rank, joined_checks.SEEDS.title),
}

TESTS = {
    **{name: test for name, (_, test) in {**FAULTS, **WITHIN}.items()},
    "averaged": joined_checks.NO_SUM.title,  # for loss_reduction="sum", the average of FSDP2 is another gradient
    "seeds": joined_checks.SEEDS.title,
}


#: The fault that is planted without ``--ci``.
FIRST = "changed after gathering"


def _train_with_faults(place: Path, names: Collection[str]) -> Path:
    every = [Ranked(place / name, sharded=True, prepare=one, epochs=2) for name, (one, _) in FAULTS.items()]
    every += [Ranked(place / name, sharded=True, within=one) for name, (one, _) in WITHIN.items()]
    every.append(Ranked(place / "averaged", sharded=True, epochs=2, reduction="sum"))
    # the usual line of a script: torch.manual_seed(0) on every rank
    every.append(Ranked(place / "seeds", sharded=True, epochs=2, seed=0))
    first, *further = (training for training in every if training.folder.name in names)
    assert first.run(*further) == [0, 0]
    return place


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the faulty trainings but the first, by name."""
    return _train_with_faults(tmp_path_factory.mktemp("faulty"), TESTS.keys() - {FIRST})


@pytest.mark.parametrize("name", ["own", "total"])
def test_infinite_numbers_of_a_rank_are_no_proof(name: str, sgd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infinite(name, monkeypatch)
    assert check_run(sgd, QUESTION).status == ("open", "deviates")


@pytest.mark.ci
def test_a_fault_is_found(tmp_path: Path) -> None:
    _require_rejection(FIRST, _train_with_faults(tmp_path, {FIRST}))


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in TESTS if name != FIRST])
def test_other_faults_are_found(name: str, faulty: Path) -> None:
    _require_rejection(name, faulty)


def _require_rejection(name: str, trainings: Path) -> None:
    found = check_run(trainings / name, QUESTION)
    assert found.status == ("open", "deviates")
    assert TESTS[name] in found.rejected


def evaluated(training: Ranked, rank: int) -> None:
    for x, y in training.loader:
        training.step(x, y)
        training.model.eval()
        with torch.no_grad():
            training.model(training.data.tensors[0])
        training.model.train()


class WithFrozenLayer(Ranked):
    """A model with a layer that is not trained, and with numbers of rows that the ranks cannot share equally."""

    def module(self) -> nn.Module:
        frozen = nn.Linear(6, 6).requires_grad_(False)
        return nn.Sequential(frozen, nn.LayerNorm(6), nn.Linear(6, 15), nn.Tanh(), nn.Linear(15, 3))


def frozen_rows(training: Ranked, rank: int) -> None:
    """Each rank writes its last batch into the gathered copy of a frozen weight."""
    before = torch.zeros(())
    for x, y in training.loader:
        for module in training.model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
        training.model._module[0].weight.data[:, 0].add_(before)
        training.step(x, y)
        before = x.mean()


@pytest.mark.ci
def test_frozen_parameters_of_a_pass_are_compared(tmp_path: Path) -> None:
    assert WithFrozenLayer(tmp_path / "run", sharded=True, epochs=2, within=frozen_rows).run() == [0, 0]
    found = check_run(tmp_path / "run", QUESTION)
    assert found.status == ("open", "deviates")
    assert OTHER_PARAMETERS.title in found.rejected


@pytest.mark.ci
@pytest.mark.parametrize("made", [{"within": evaluated}, {"within": Ranked.train_in_chunks}])
@pytest.mark.parametrize("kind", [Ranked, WithFrozenLayer])
def test_passes_and_layers_without_updates_are_no_deviation(made, kind, tmp_path):
    assert kind(tmp_path / "run", sharded=True, batch=150, **made).run() == [0, 0]
    found = check_run(tmp_path / "run", QUESTION)
    assert (found.verdict, found.fine, found.rejected) == ("proved", True, set())


def unrecorded(training: Ranked, rank: int) -> None:
    with training.recorder() if rank == 0 else contextlib.nullcontext():
        training.train()


def failing(training: Ranked, rank: int) -> None:
    """The recorder of rank 1 has a fault at the second step."""
    for number, (x, y) in enumerate(training.loader):
        if rank == 1 and number == 1:
            rank_watch.RankWatch.step = None
        training.step(x, y)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("made", "codes"), [({"loop": unrecorded}, [0, 0]), ({"within": failing}, [0, 0]), ({"within": killed}, [1, 9])]
)
def test_a_rank_without_a_whole_recording_blocks_no_other(made, codes, tmp_path):
    assert Ranked(tmp_path / "run", sharded=True, epochs=1, **made).run() == codes
    if "loop" in made:
        with pytest.raises(RecordingError, match="rank 1 of 2 is missing"):
            check_run(tmp_path / "run", QUESTION)
        return
    found = check_run(tmp_path / "run", QUESTION)
    assert (found.verdict, found.fine) == ("open", False)
    assert (joined_checks.SHORTER.title in found.rejected) == (made["within"] is failing)


def test_shards_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    def refused(training: Ranked, rank: int) -> None:
        for given, words in (
            ({"optimizer": training.private.original_optimizer}, "FSDP2 shards the model, and optimizer is torch.SGD"),
        ):
            with pytest.raises(UsageError, match=words):
                training.recorder(**{"engine": None, **given})
        half = nn.Sequential(nn.Linear(4, 4))
        fully_shard(half, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        with pytest.raises(UsageError, match="mixed precision policy, whose rounding"):
            refuse_precision(half)
        column = fully_shard(nn.Linear(4, 4, bias=False), shard_placement_fn=lambda _: Shard(1))
        with pytest.raises(UsageError, match="is not sharded by rows"):
            shard_of(column.weight)
        copies = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "rows"))
        with pytest.raises(UsageError, match="is not sharded by rows"):
            shard_of(fully_shard(nn.Linear(4, 4, bias=False), mesh=copies).weight)
        with pytest.raises(UsageError, match="one is whole"):
            shard_of(nn.Linear(2, 2).weight)

    assert Ranked(tmp_path / "run", sharded=True, loop=refused).run() == [0, 0]


@pytest.mark.ci
def test_the_recorder_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    def trained(training: Ranked, rank: int) -> None:
        with training.recorder() if training.folder.name == "run" else contextlib.nullcontext():
            training.train()
        torch.save([local(p).detach().clone() for p in training.private.params], f"{training.folder}-{rank}.pt")

    one, other = (Ranked(tmp_path / name, sharded=True, loop=trained) for name in ("run", "bare"))
    assert one.run(other) == [0, 0]
    for rank in (0, 1):
        pairs = zip(*(torch.load(tmp_path / f"{name}-{rank}.pt") for name in ("run", "bare")), strict=True)
        assert all(torch.equal(p, q) for p, q in pairs)
