"""Trainings in several processes: sound ones are proved as in one process, and faults of the ranks are found."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.data_loader import DPDataLoader
from support.checked_runs import CheckedRun, Question, check_run
from support.families import selected
from support.ranks import Ranked, after_scaling, dealt, infinite, killed, reduced
from torch import distributed

import dpspec
from dpspec.errors import RecordingError, UsageError
from dpspec_recording.folder.facts import of_ranks
from dpspec_recording.folder.part import Comparison, joined_comparison
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.writer import INTERNAL, PUBLIC
from dpspec_recording.judge import joined_checks
from dpspec_recording.judge.bounds import phases_of
from dpspec_recording.judge.executed_run import observe
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.gradient_parameters.passes import Passes, PassFacts
from dpspec_recording.observers.observer import Observer
from dpspec_recording.observers.sampling.batches import Batches, BatchFacts
from dpspec_recording.observers.sensitivity.contributions import ContributionFacts, Contributions
from dpspec_recording.observers.sensitivity.replays import OTHERS_MOVED, Replays
from dpspec_recording.observers.sensitivity.sums import SumFacts, Sums
from dpspec_recording.observers.update_rule.noisy_gradients import MEDDLED
from dpspec_recording.step_replay.facts import PROCESSES

pytestmark = pytest.mark.filterwarnings("ignore")

Script = Callable[[Ranked, int], None]
QUESTION = Question(delta=1e-5, epsilon=50.0)


def trained(folder: Path, **made: Any) -> CheckedRun:
    codes = Ranked(folder, **made).run()
    assert codes == [0] * len(codes)
    return check_run(folder, QUESTION)


def without_synchronization(training: Ranked, rank: int) -> None:
    """Torch's wrapper does not sum the gradients of the passes, which Opacus does not use."""
    with training.model._module.no_sync():
        training.train()


def fetched_before_the_next_epoch(training: Ranked, rank: int) -> None:
    """The loop sets the epoch, and so the order of the records, before it uses the last batch of the one before."""

    def batches() -> Iterator[Any]:
        for epoch in range(training.epochs):
            training.loader.batch_sampler.set_epoch(epoch)
            yield from training.loader

    for batch, _ in pairwise(chain(batches(), [None])):
        training.step(*batch)


SOUND: dict[str, dict[str, Any]] = {
    "hooks": {},
    "ghost": {"ghost": True},
    "torch": {"torchs": True},
    "torch-ghost": {"torchs": True, "ghost": True},
    "torch-no-sync": {"torchs": True, "within": without_synchronization},
    "memory": {"physical": 16},
    "memory-ghost": {"physical": 16, "ghost": True, "reduction": "sum"},
    "adamw": {"optimizer": "adamw"},
    "chunks": {"within": Ranked.train_in_chunks},
    "chunks-ghost": {"within": Ranked.train_in_chunks, "ghost": True},
    "fetched": {"within": fetched_before_the_next_epoch},
}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders "hooks" of a sound training on two ranks, and "other" of a shorter one."""
    place = tmp_path_factory.mktemp("sound")
    hooks = Ranked(place / "hooks", batch=100, **SOUND["hooks"])
    assert Ranked(place / "other", batch=100, epochs=1).run(hooks) == [0, 0]
    return place


@pytest.fixture(scope="module")
def further(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the other selected sound trainings, by name."""
    place, names = tmp_path_factory.mktemp("further"), selected(request, "name") - {"hooks"}
    first, *others = [Ranked(place / name, **{"batch": 100, **SOUND[name]}) for name in sorted(names & {*SOUND})]
    assert first.run(*others) == [0, 0]
    return place


@pytest.fixture(scope="module")
def sound(trainings: Path) -> Path:
    return trainings / "hooks"


@pytest.mark.family
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_is_proved(name: str, trainings: Path, request: pytest.FixtureRequest) -> None:
    place = trainings if name == "hooks" else request.getfixturevalue("further")
    found = check_run(place / name, QUESTION)
    assert (found.verdict, found.fine, found.rejected) == ("proved", True, set())
    assert {"joined-ranks", "secret-randomness"} <= set(found.audit.recording.assumes)
    replays = found.run.fact(Replays)
    assert replays is not None
    assert (replays.replayed >= 1.0, PROCESSES in replays.origins) == (True, False)


@pytest.mark.ci
def test_four_ranks_are_proved(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", world=4, batch=150, epochs=8).verdict == "proved"


def centered(training: Ranked, x: Any, y: Any, *, over_ranks: bool) -> None:
    """Make a step whose loss subtracts the mean of the batch from its outputs."""
    training.private.zero_grad()
    outputs = training.model(x)
    total, count = outputs.detach().sum(0), torch.tensor([float(len(x))])
    if over_ranks:
        distributed.all_reduce(total)
        distributed.all_reduce(count)
    training.criterion(outputs - total / count, y).backward()
    training.private.step()


def logged(training: Ranked, x: Any, y: Any) -> None:
    """Make a step that logs the mean of the loss over the ranks."""
    training.private.zero_grad()
    loss = training.criterion(training.model(x), y)
    loss.backward()
    mean = loss.detach().clone()
    distributed.all_reduce(mean)
    training.private.step()


def stepping(step: Callable[[Ranked, Any, Any], None]) -> Script:
    """Prepare a training with another step."""

    def prepare(training: Ranked, rank: int) -> None:
        training.step = partial(step, training)  # type: ignore[method-assign]

    return prepare


@pytest.mark.ci
@pytest.mark.parametrize("torchs", [False, True])
def test_a_rank_whose_records_mix_is_found(torchs: bool, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", torchs=torchs, epochs=2, prepare=stepping(partial(centered, over_ranks=False)))
    assert found.conformance.status == "deviates"
    assert OTHERS_MOVED.title in {name for one in found.tests if one.p_value < 1e-9 for name in one.tests}


@pytest.mark.ci
@pytest.mark.parametrize("torchs", [False, True])
def test_records_that_mix_between_ranks_leave_the_claim_open(torchs: bool, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", torchs=torchs, epochs=2, prepare=stepping(partial(centered, over_ranks=True)))
    assert found.verdict == "open"
    assert "depends on values that other processes sent" in found.doubts
    assert "values that the script computed from the batch before" not in found.doubts


@pytest.mark.ci
def test_a_logged_mean_over_the_ranks_is_proved(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", epochs=2, prepare=stepping(logged))
    replays = found.run.fact(Replays)
    assert replays is not None
    assert (found.verdict, replays.replayed >= 1.0, PROCESSES in replays.origins) == ("proved", True, False)


@pytest.mark.ci
def test_schedule_and_cost_are_those_of_one_process(sound: Path, tmp_path: Path) -> None:
    joined = check_run(sound, QUESTION)
    assert Ranked(tmp_path / "run", batch=100, world=1).run() == [0]
    single = check_run(tmp_path / "run", QUESTION)
    assert phases_of(joined.run) == phases_of(single.run)
    mine, other = (one.costs[1].interval for one in (joined, single))
    assert (mine.lower, mine.upper) == pytest.approx((other.lower, other.upper), rel=1e-6)
    assert {one.assumption for one in joined.checks} == {one.assumption for one in single.checks}
    assert {one.name for one in joined.assumptions} == {one.name for one in single.assumptions}


def test_comparisons_of_sharded_ranks_count_in_all_parts() -> None:
    parts = [Comparison(lengths=[5, 5], longest=5, ended=True, parallel=(3.0, 2)) for _ in range(2)]
    joined = joined_comparison(parts)
    assert (joined.parallel, joined.lengths) == ((6.0, 4), [10, 10])


def test_a_joined_step_is_the_union_of_the_ranks(sound: Path) -> None:
    joined, ranks = observe(sound)[0], [RunFolder.open(sound / f"rank-{rank}", OBSERVERS) for rank in range(2)]
    steps = zip(*(list(one.steps())[:-1] for one in ranks), *(list(one.internal()) for one in ranks), strict=True)
    for number, (made, whole) in enumerate(zip(steps, joined.folder.internal(), strict=True)):
        first, second, mine, theirs = made
        assert joined["drawn"][number] == joined["rows"][number] == first.drawn + second.drawn
        assert joined["noise_squares"][number] == first.noise_squares > second.noise_squares == 0.0
        assert joined["divisor"][number] == 2 * first.divisor == 100.0
        assert np.array_equal(whole.members, np.sort(np.concatenate([mine.members, theirs.members])))
        assert mine.rank.gradients == theirs.rank.gradients != bytes(8)
        assert mine.rank.parameters == theirs.rank.parameters
        assert np.allclose((mine.rank.own + theirs.rank.own) / 2, mine.rank.total, atol=1e-6)
    assert joined.header.expected_batch_size == 100.0
    assert joined.fact(Batches).unused == 0
    assert joined.steps == 12


def noise_twice_on_another(training: Ranked, rank: int) -> None:
    training.private.rank, training.private.noise_multiplier = 1 - rank, 2.0 if rank else 1.0


def half_reduced(optimizer: Any, original: Callable[[Any], None]) -> None:
    """Only some of the parameters are summed over the ranks."""
    for p in optimizer.params[:2]:
        distributed.all_reduce(p.grad)
        p.grad /= 2


def scaled_up(optimizer: Any, original: Callable[[Any], None]) -> None:
    original(optimizer)
    for p in optimizer.params:
        p.grad *= 3.0


#: By name: the script that prepares a training on every rank, and the test that rejects it.
FAULTS: dict[str, tuple[Script, str]] = {
    "noisy everywhere": (lambda t, rank: setattr(t.private, "rank", 0), joined_checks.ONE_NOISE.title),
    "noisy nowhere": (lambda t, rank: setattr(t.private, "rank", 1), joined_checks.ONE_NOISE.title),
    "noise twice on another": (noise_twice_on_another, joined_checks.OTHER_SETUP.title),
    "noise in turns": (
        lambda t, rank: after_scaling(t, lambda optimizer: setattr(optimizer, "rank", 1 - optimizer.rank)),
        joined_checks.ONE_NOISE.title,
    ),
    "other clip": (lambda t, rank: setattr(t.private, "max_grad_norm", 0.5 + rank), joined_checks.OTHER_SETUP.title),
    "same share": (lambda t, rank: setattr(t.loader.batch_sampler, "rank", 0), joined_checks.SHARED.title),
    "each rank draws from all records": (
        lambda t, rank: setattr(t, "loader", DPDataLoader.from_data_loader(t.plain_loader())),
        joined_checks.SHARED.title,
    ),
    "dealt": (dealt, "assumed Poisson sampling, although the loader's batches are shuffled"),
    "shares by other orders": (lambda t, rank: t.loader.batch_sampler.set_epoch(rank), joined_checks.FOREIGN.title),
    "one generator": (
        lambda t, rank: setattr(t.loader.batch_sampler, "generator", torch.Generator().manual_seed(3)),
        joined_checks.SEEDS.title,
    ),
    "no reduction": (lambda t, rank: setattr(t.private, "reduce_gradients", lambda: None), joined_checks.UNEQUAL.title),
    "half reduced": (reduced(half_reduced), joined_checks.NO_SUM.title),
    "scaled up": (reduced(scaled_up), joined_checks.NO_SUM.title),
    "drifting": (lambda t, rank: t.private.param_groups[0].update(lr=0.1 + rank), joined_checks.UNEQUAL.title),
    "changed before": (
        lambda t, rank: after_scaling(t, lambda optimizer: [p.grad.add_(0.1 * rank) for p in optimizer.params]),
        MEDDLED.title,
    ),
}


@pytest.fixture(scope="module")
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, names = tmp_path_factory.mktemp("faulty"), selected(request, "name")
    every = [Ranked(place / name, prepare=script, epochs=2) for name, (script, _) in FAULTS.items()]
    every.append(Ranked(place / "seeds", seed=0))  # the usual line of a script: torch.manual_seed(0) on every rank
    first, *further = (training for training in every if training.folder.name in names)
    assert first.run(*further) == [0, 0]
    return place


@pytest.mark.ci
@pytest.mark.parametrize("name", [*FAULTS, "seeds"])
def test_faults_are_found(name: str, faulty: Path) -> None:
    found = check_run(faulty / name, QUESTION)
    assert found.status == ("open", "deviates")
    assert (FAULTS[name][1] if name in FAULTS else joined_checks.SEEDS.title) in found.rejected
    if name == "seeds":
        assert any("torch.manual_seed(seed + rank)" in words for words in found.audit.recording.advice)


@pytest.mark.parametrize("name", ["own", "total"])
def test_infinite_numbers_of_a_rank_are_no_proof(name: str, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infinite(name, monkeypatch)
    found = check_run(sound, QUESTION)
    assert found.status == ("open", "deviates")
    assert joined_checks.NO_SUM.title in found.rejected


def skips(training: Ranked, rank: int) -> None:
    """Rank 1 skips a batch: it adds zeros to the sum, and receives the result."""
    for number, (x, y) in enumerate(training.loader):
        if rank == 1 and number == 2:
            zeros = [torch.zeros_like(p) for p in training.model.parameters()]
            for p, zero in zip(training.model.parameters(), zeros, strict=True):
                distributed.all_reduce(zero)
                p.data -= 0.1 * zero / 2
        else:
            training.step(x, y)


def shorter(training: Ranked, rank: int) -> None:
    """The recording of rank 1 ends before its training."""
    with training.recorder():
        for x, y in list(training.loader)[: 3 - rank]:
            training.step(x, y)
    if rank == 1:
        training.step(*next(iter(training.loader)))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("made", "codes", "test"),
    [
        ({"within": skips}, [0, 0], joined_checks.SHORTER.title),
        ({"within": killed}, [1, 9], None),
        ({"loop": shorter}, [0, 0], joined_checks.SHORTER.title),
    ],
)
def test_an_incomplete_rank_is_never_proved(made, codes, test, tmp_path):
    assert Ranked(tmp_path / "run", epochs=1, **made).run() == codes
    found = check_run(tmp_path / "run", QUESTION)
    assert (found.verdict, found.fine) == ("open", False)
    assert test in {None, *found.rejected}
    assert any("has no end" in caution for caution in found.cautions) == (made.get("within") is killed)


@pytest.mark.ci
def test_another_order_of_the_data_leaves_the_claim_open(tmp_path: Path) -> None:
    """A record is in the shares of both ranks, and no number of a record shows it."""

    def shuffled(training: Ranked, rank: int) -> None:
        order = torch.randperm(len(training.data))
        training.loader.dataset.tensors = tuple(one[order] for one in training.loader.dataset.tensors)

    found = trained(tmp_path / "run", prepare=shuffled, epochs=1)
    assert found.status == ("open", "no-deviation-found")
    assert "different records at the same places" in found.reason


@pytest.mark.ci
def test_a_rank_that_does_not_record_is_missing(tmp_path: Path) -> None:
    def unrecorded(training: Ranked, rank: int) -> None:
        with training.recorder() if rank == 0 else contextlib.nullcontext():
            training.train()

    assert Ranked(tmp_path / "run", loop=unrecorded, epochs=1).run() == [0, 0]
    with pytest.raises(RecordingError, match=r"rank 1 of 2 is missing: every process must call dpspec\.record"):
        check_run(tmp_path / "run", QUESTION)


def test_folders_that_are_not_one_run_are_refused(sound: Path, trainings: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="rank 0 of 2: check the folder that holds all ranks"):
        check_run(sound / "rank-0", QUESTION)
    for number, (source, place, message) in enumerate(
        (
            (None, "rank-1", "rank 1 of 2 is missing"),
            (trainings / "other" / "rank-1", "rank-1", "rank-1: of another run than"),
            (sound / "rank-0", "rank-1", "rank-1: holds the recording of rank 0; rank-N is for process N"),
            (sound / "rank-0", ".", "holds a run of one process, and ranks of another"),
        )
    ):
        copy = Path(shutil.copytree(sound, tmp_path / f"{number}"))
        if place == "rank-1":
            shutil.rmtree(copy / place)
        if source is not None:
            shutil.copytree(source, copy / place, dirs_exist_ok=True)
        with pytest.raises(RecordingError, match=message):
            check_run(copy, QUESTION)


@pytest.mark.family
@pytest.mark.parametrize(
    ("name", "size"), [(INTERNAL, None), (PUBLIC, 0.2), (PUBLIC, 0.5), (PUBLIC, 0.9), (PUBLIC, 0.999)]
)
def test_a_rank_that_is_withheld_or_cut_leaves_the_claim_open(name, size, sound, tmp_path):
    copy = Path(shutil.copytree(sound, tmp_path / "run"))
    content = (copy / "rank-1" / name).read_bytes()
    (copy / "rank-1" / name).unlink()
    if size is not None:
        (copy / "rank-1" / name).write_bytes(content[: int(size * len(content))])
    found = check_run(copy, QUESTION)
    assert found.verdict == "open"
    assert found.fine is False
    status = found.assumption("joined-ranks").status
    assert size is not None or status == "unchecked"


def test_a_fault_of_one_rank_is_one_of_all(sound: Path) -> None:
    whole: Any = observe(sound / ".." / "other")[0].end
    seen: list[dict[type[Observer[Any]], Any]] = [
        {
            Passes: PassFacts(passes=9, moved=0, steps=4, unseen=0, compared=9),
            Sums: SumFacts(compared=4, edited=0),
            Contributions: ContributionFacts(norm_type="", sum_type=""),
            Batches: BatchFacts(unused=0, passed_over=1),
        },
        {
            Passes: PassFacts(passes=8, moved=2, steps=4, unseen=1, compared=7),
            Sums: SumFacts(compared=4, edited=1),
            Contributions: ContributionFacts(norm_type="bfloat16", sum_type=""),
            Batches: BatchFacts(unused=2, passed_over=0),
        },
    ]
    one, other = (replace(whole, observed=whole.observed | {k.name: v for k, v in facts.items()}) for facts in seen)
    found = of_ranks([one, other], [0], OBSERVERS)
    assert found.of(Sums) == SumFacts(compared=8, edited=1)
    assert found.of(Passes) == PassFacts(passes=17, moved=2, steps=8, unseen=1, compared=16)
    assert found.of(Contributions) == ContributionFacts(norm_type="bfloat16", sum_type="")
    assert found.of(Batches) == BatchFacts(unused=2, passed_over=1)


@pytest.mark.ci
def test_too_small_shares_have_no_bound(tmp_path: Path) -> None:
    """Opacus' sampler omits a rank's empty draw, and with it the step."""
    found = trained(tmp_path / "run", batch=20, epochs=1)
    assert found.verdict == "open"
    assert "omits the empty draws of a rank" in found.reason


def test_parts_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    def refused(training: Ranked, rank: int) -> None:
        planted = dpspec.plant(training.data, kind="mislabelled", count=10, classes=2)
        with pytest.raises(UsageError, match="canaries are for a training in one process"):
            training.recorder(planted=planted, loader=None)
        with pytest.raises(UsageError, match=r"torch.distributed runs 2 processes, and optimizer is torch.SGD, which"):
            training.recorder(optimizer=training.private.original_optimizer, engine=None)

    assert Ranked(tmp_path / "run", loop=refused).run() == [0, 0]
