"""Constants of steps that follow from the records: weights and priors of classes, and statistics of columns."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked
from support.public_mistakes.parts import OpacusTraining, OwnLoop
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dpspec.contract.rules import RuleRun
from dpspec_recording.observers.rules import Rules
from dpspec_recording.observers.sensitivity import standardized_features
from dpspec_recording.observers.sensitivity.class_weights_from_labels import RULE, ClassWeightFacts, follows_from
from dpspec_recording.observers.sensitivity.standardized_features import ScalingFacts, StandardizedFeatures

pytestmark = pytest.mark.filterwarnings("ignore")

COUNTS = torch.tensor([37.0, 63.0, 200.0], dtype=torch.float64)
SHARES = COUNTS / COUNTS.sum()

#: Losses of logits, labels and label counts.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.mark.parametrize(
    ("vector", "follows"),
    [
        (SHARES, True),
        (SHARES.log(), True),
        (3.0 - SHARES.log(), True),
        (1.0 / COUNTS, True),
        (COUNTS.sum() / (3.0 * COUNTS), True),
        (COUNTS**-0.25, True),
        (0.5 * SHARES.log(), False),
        (torch.tensor([1.0, 2.0, 5.0]), False),
        (torch.tensor([0.1307]), False),
        (torch.ones(3), False),
        (torch.zeros(3), False),
        (SHARES.flip(0), False),
    ],
)
def test_weights_and_priors_follow_from_label_counts(vector: Tensor, follows: bool) -> None:
    assert follows_from(vector.float().double(), COUNTS) is follows


@pytest.mark.parametrize(("value", "follows"), [(37 / 13, True), (13 / 37, True), (1.0459686, True), (2.85, False)])
def test_one_weight_follows_from_the_counts_of_two_classes(value: float, follows: bool) -> None:
    assert follows_from(torch.tensor([value]).double(), torch.tensor([74.0, 26.0]).double()) is follows


def prior(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    return cross_entropy(logits + (counts / counts.sum()).log(), y)


def weighted(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    return cross_entropy(logits, y, weight=1.0 / counts, reduction="sum")


def positive(logits: Tensor, y: Tensor, ratio: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits[..., 0], y.float(), pos_weight=ratio)


def public(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    return cross_entropy((logits - torch.tensor([0.1, 0.2])) / torch.tensor([0.5, 0.25]), y, label_smoothing=0.1)


#: Losses, and the names of their vectors.
SHOWN = [
    (prior, "the loss (a tensor of 2 numbers)"),
    (weighted, "the loss (a tensor of 2 numbers)"),
    (positive, "the loss (a tensor of one number)"),
    (public, ""),
]


def noted(folder: Path, loop: OwnLoop, loss: Loss) -> tuple[ClassWeightFacts | None, ...]:
    """Record a loop, and return the facts of the rule."""
    counts = torch.bincount(loop.y).float()
    counts = counts[0] / counts[1] if loss is positive else counts

    def rows(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(torch.func.functional_call(loop.model, parameters, (x[None],)), y[None], counts)

    per_record = torch.func.vmap(torch.func.grad(rows), in_dims=(None, 0, 0))
    with loop.recorder(folder) as run:
        for _ in range(3):
            drawn = loop.poisson()
            values = {name: p.detach() for name, p in loop.model.named_parameters()}
            gradients = list(per_record(values, loop.x[drawn], loop.y[drawn]).values())
            loop.step(run, drawn, *loop.clipped(gradients), loop.noise())
    return facts_of(folder)


def facts_of(folder: Path) -> tuple[ClassWeightFacts | None, ...]:
    rules = checked(folder, epsilon=100.0).run.fact(Rules)
    assert rules is not None
    return rules.of(RULE, ClassWeightFacts)


@pytest.mark.ci
@pytest.mark.parametrize("follows", [False, True])
def test_the_weights_of_a_loss_module_are_its_own(follows: bool, tmp_path: Path) -> None:
    """The rule computes weights of the label counts in the step, which are not weights of the script."""
    training = OpacusTraining()
    counts = torch.bincount(training.data.tensors[1]).float()
    criterion = nn.CrossEntropyLoss(weight=1.0 / counts if follows else torch.tensor([1.0, 5.0]))
    for x, y in training.recorded(tmp_path / "run", 1):
        training.step(criterion(training.model(x), y))
    (facts,) = facts_of(tmp_path / "run")
    assert facts is not None
    assert bool(facts.module) is follows


def constants_read(folder: Path) -> int:
    """The number of statistics of the records that steps read."""
    rules = checked(folder, epsilon=100.0).run.fact(Rules)
    assert rules is not None
    (facts,) = rules.of(standardized_features.RULE, ScalingFacts)
    assert facts is not None
    return facts.read


#: Functions of all records that make the features of a batch, with the number of their constants.
SCALINGS: list[tuple[Callable[[Tensor], Callable[[Tensor], Tensor]], int]] = [
    (lambda x: partial(standardized, x.mean(0), x.std(0)), 2),
    (lambda x: partial(standardized, float(x.mean()), float(x.std())), 2),
    (lambda x: partial(cut, x.amin(0), x.amax(0)), 2),
    (lambda x: partial(standardized, torch.full((x.shape[1],), 0.1307), 0.3081), 0),
    (lambda x: partial(cut, -1.6448536, 1.6448536), 0),
    (lambda x: partial(standardized, x.mean(0) + 0.01 * torch.randn(x.shape[1]), 1.0), 0),  # with noise
]


def standardized(mean: Any, deviation: Any, batch: Tensor) -> Tensor:
    return (batch - mean) / deviation


def cut(low: Any, high: Any, batch: Tensor) -> Tensor:
    return batch.clamp(low, high)


@pytest.mark.ci
@pytest.mark.parametrize(("make", "constants"), SCALINGS)
def test_custom_loops_show_the_statistics_that_they_read(make: Any, constants: int, tmp_path: Path) -> None:
    loop = OwnLoop()
    scale = make(loop.x)
    with loop.recorder(tmp_path / "run") as run:
        for _ in range(3):
            drawn = loop.poisson()
            values = {name: p.detach() for name, p in loop.model.named_parameters()}
            rows = loop._rows(values, scale(loop.x[drawn]), loop.y[drawn])
            loop.step(run, drawn, *loop.clipped(list(rows.values())), loop.noise())
    assert constants_read(tmp_path / "run") == constants


@pytest.mark.ci
@pytest.mark.parametrize(("make", "constants"), [SCALINGS[0], SCALINGS[3]])
def test_trainings_with_opacus_show_the_statistics_that_they_read(make: Any, constants: int, tmp_path: Path) -> None:
    training = OpacusTraining()
    scale = make(training.data.tensors[0])
    for x, y in training.recorded(tmp_path / "run", 1):
        training.step(training.criterion(training.model(scale(x)), y))
    assert constants_read(tmp_path / "run") == constants


def test_a_statistic_that_a_step_reads_is_a_caution() -> None:
    run = RuleRun(own_loop=True, steps=9, delta=1e-5)
    text = StandardizedFeatures.caution(ScalingFacts(columns=3, read=2), run)
    assert text.startswith("Steps read 2 constants with the value of a mean")
    assert "one constant" in StandardizedFeatures.caution(ScalingFacts(columns=3, read=1), run)
    assert StandardizedFeatures.caution(ScalingFacts(columns=3), run) == ""


@pytest.mark.ci
@pytest.mark.parametrize(("loss", "words"), SHOWN)
def test_custom_loops_show_the_vectors_that_they_read(loss: Loss, words: str, tmp_path: Path) -> None:
    (facts,) = noted(tmp_path / "run", OwnLoop(), loss)
    assert facts == ClassWeightFacts(module=words)


@pytest.mark.ci
@pytest.mark.parametrize(("loss", "words"), [SHOWN[0], SHOWN[-1]])
def test_trainings_with_opacus_show_the_vectors_that_they_read(loss: Loss, words: str, tmp_path: Path) -> None:
    training = OpacusTraining()
    counts = torch.bincount(training.data.tensors[1]).float()
    for x, y in training.recorded(tmp_path / "run", 1):
        training.step(loss(training.model(x), y, counts))
    assert facts_of(tmp_path / "run") == (ClassWeightFacts(module=words),)
