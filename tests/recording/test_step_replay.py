"""Honest and faulty steps in many styles: the sum moves by at most two clip norms, and other rows stay, or not."""

import random
from copy import deepcopy
from typing import Any

import pytest
import torch
from support.replayed_steps import (
    CLIP,
    features,
    flat_sum,
    microbatch_step,
    mlp,
    norms,
    opacus_step,
    opacus_trace,
    own_step,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dpspec.recording.step_replay import measure as measuring
from dpspec.recording.step_replay.measure import measure
from dpspec.recording.step_replay.trace import StepTrace

pytest.importorskip("opacus")


class Apply(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


LABELS = features()[1]
TOKENS = (torch.randint(1, 50, (16, 6), generator=torch.Generator().manual_seed(6)), LABELS)
TARGETS = torch.randint(1, 50, (16, 6), generator=torch.Generator().manual_seed(7))
TARGETS[0, 2:] = 0
TEXTS = (TOKENS[0], TARGETS)


def language_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))


def noisy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)


def per_record_tokens(model: Any, x: Tensor, y: Tensor) -> Tensor:
    losses = cross_entropy(model(x).transpose(1, 2), y, ignore_index=0, reduction="none")
    return (losses.sum(1) / (y > 0).sum(1)).mean()


def guarded(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(model(x), y)
    return loss if bool(torch.isfinite(loss)) else 0.0 * loss


HONEST = {
    "plain": lambda: opacus_step(mlp()),
    "dropout": lambda: opacus_step(mlp(nn.Dropout(0.3))),
    "functorch": lambda: opacus_step(mlp(), mode="functorch"),
    "ghost": lambda: opacus_step(mlp(), mode="ghost"),
    "noise as augmentation": lambda: opacus_step(mlp(), noisy),
    "guard against NaN": lambda: opacus_step(mlp(), guarded),
    "embedding": lambda: opacus_step(nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(48, 2)), batch=TOKENS),
    "token means per record": lambda: opacus_step(language_model(), per_record_tokens, TEXTS),
    "small batch": lambda: opacus_step(mlp(), batch=features(3)),
    "own loop, vmap": lambda: own_step(),
    "own loop, matrix product": lambda: own_step(
        lambda rows, clip: [
            ((clip / norms(rows)).clamp_max(1.0) @ row.flatten(1)).view(row.shape[1:]) for row in rows.values()
        ]
    ),
    "own loop, in-place sum": lambda: own_step(in_place_sum),
    "own loop, deep copy": lambda: own_step(lambda rows, clip: deepcopy(flat_sum(rows, clip))),
    "own loop, microbatches": lambda: microbatch_step(lambda norm: (CLIP / norm).clamp_max(1.0)),
}


def in_place_sum(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    """Write each contribution into a view of a buffer from before the sum."""
    factors = (clip / norms(rows).clamp_min(1e-12)).clamp_max(1.0)
    sums = [torch.zeros_like(row[0]) for row in rows.values()]
    for total, row in zip(sums, rows.values(), strict=True):
        for record in range(len(row)):
            total.view(-1)[:].add_(factors[record] * row[record].reshape(-1))
    return sums


def mixed_up(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(0.7 * x + 0.3 * x[torch.randperm(len(x))]), y)


def centered(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x - x.mean(0)), y)


def weighted_mean(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, weight=torch.tensor([1.0, 19.0]))


def in_batch_negatives(model: Any, x: Tensor, y: Tensor) -> Tensor:
    embedded = normalize(model(x))
    return cross_entropy(embedded @ embedded.T / 0.1, torch.arange(len(x)))


def hard_mining(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none").topk(8).values.mean()


def normalized_loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(model(x), y)
    return loss / loss.detach()


def mean_over_tokens(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).reshape(-1, 50), y.reshape(-1), ignore_index=0)


def two_passes(model: Any, x: Tensor, y: Tensor) -> Tensor:
    cross_entropy(model(x), y).backward()
    return 0.3 * model(x).square().mean()


def augmented(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x.repeat(4, 1) + 0.1 * torch.randn(4 * len(x), 20)), y.repeat(4))


def coefficients_of_one(model: Any) -> None:
    model.get_clipping_coef = lambda: torch.ones(16)


def mean_clipped(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    means = [row.mean(0) for row in rows.values()]
    factor = (clip / torch.stack([mean.norm() for mean in means]).norm()).clamp_max(1.0)
    return [len(next(iter(rows.values()))) * factor * mean for mean in means]


def each_layer(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    return [flat_sum({"layer": row}, clip)[0] for row in rows.values()]


FAULTY = {
    "standardization by the batch": lambda: opacus_step(mlp(Apply(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5)))),
    "mixup": lambda: opacus_step(mlp(), mixed_up),
    "class-weighted mean": lambda: opacus_step(mlp(), weighted_mean),
    "in-batch negatives": lambda: opacus_step(mlp(), in_batch_negatives),
    "hard mining": lambda: opacus_step(mlp(), hard_mining),
    "loss divided by itself": lambda: opacus_step(mlp(), normalized_loss),
    "mean over tokens of the batch": lambda: opacus_step(language_model(), mean_over_tokens, TEXTS),
    "two backward passes": lambda: opacus_step(mlp(), two_passes),
    "augmentations as rows": lambda: opacus_step(mlp(), augmented),
    "ghost, standardization": lambda: opacus_step(
        mlp(Apply(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5))), mode="ghost"
    ),
    "ghost, coefficients of 1": lambda: opacus_step(mlp(), mode="ghost", fault=coefficients_of_one),
    "functorch, centering": lambda: opacus_step(mlp(), centered, mode="functorch"),
    "own loop, clipped mean": lambda: own_step(mean_clipped),
    "own loop, each layer": lambda: own_step(each_layer),
    "own loop, no clipping": lambda: own_step(lambda rows, clip: [row.sum(0) for row in rows.values()]),
    "own loop, no clipping, deep copy": lambda: own_step(
        lambda rows, clip: deepcopy([row.sum(0) for row in rows.values()])
    ),
    "own loop, largest norm of the batch": lambda: own_step(
        lambda rows, clip: [row.sum(0) * (clip / norms(rows).max()).clamp_max(1.0) for row in rows.values()]
    ),
    "own loop, unclipped buffer": lambda: own_step(lambda rows, clip: in_place_sum(rows, 1e9)),
    "own loop, microbatches without factor": lambda: microbatch_step(lambda norm: 1.0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HONEST)
def test_honest_steps_move_by_two_clip_norms_and_leave_other_rows(name: str) -> None:
    replay = HONEST[name]()
    assert replay.abstained == ""
    assert replay.replacements in (measuring.MOST_REPLACEMENTS, measuring.MOST_REPLACEMENTS + 1)  # with tokens
    assert 0.0 < replay.sum_moved <= 2.0 + 1e-6
    assert (replay.outputs_moved, replay.gradients_moved) == (0.0, 0.0)
    assert not replay.is_large
    assert not replay.mixes_records


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTY)
def test_faulty_steps_are_found(name: str) -> None:
    replay = FAULTY[name]()
    assert replay.abstained == ""
    assert replay.is_large or replay.mixes_records, replay


def test_mining_is_found_in_a_step_that_may_sort_its_records() -> None:
    """A record that enters the hardest ones replaces another: the set of gradients is as after a sort."""
    batch = features()
    trace, sums, outputs, gradients = opacus_trace(mlp(), hard_mining, batch)
    rows = {"outputs": outputs, "gradients": gradients}
    assert measure(trace, batch, sums, CLIP, **rows, randomness=random.Random(3), may_sort=True).mixes_records


def test_a_number_of_python_that_depends_on_the_record_abstains() -> None:
    replay = microbatch_step(lambda norm: min(1.0, CLIP / norm.item()))
    assert replay.abstained.startswith("a number of Python depends on the record, for example by .item()")
    assert not replay.is_large
    assert not replay.mixes_records


def test_a_shape_that_depends_on_the_record_abstains() -> None:
    def confident(model: Any, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model(x), y, reduction="none")
        return losses[losses > 0.65].mean()

    assert "depends on the record" in opacus_step(mlp(), confident).abstained


def test_a_sum_that_was_not_seen_abstains() -> None:
    x = torch.ones(4, 2)
    trace = StepTrace()
    trace.start()
    total = x.sum(0)
    trace.stop()
    total += 1.0
    assert "did not see the whole step" in measure(trace, [x], [total], 1.0).abstained


def test_a_sum_that_no_record_moves_abstains() -> None:
    x, trace = torch.randn(4, 3), StepTrace()
    trace.start()
    total = (0.0 * x).sum(0)
    trace.stop()
    assert measure(trace, [x], [total], 1.0).abstained == "no replaced record moves the sum"


def test_a_replay_does_not_write_into_copied_memory() -> None:
    x, trace = torch.randn(4, 3), StepTrace()
    trace.start()
    total = deepcopy(x.sum(0))
    trace.stop()
    executed = total.clone()
    assert measure(trace, [x], [total], 1.0).sum_moved > 0.0
    assert torch.equal(total, executed)


def test_a_copied_memory_of_the_batch_abstains() -> None:
    x, trace = torch.randn(4, 3), StepTrace()
    trace.start()
    total = deepcopy(x).sum(0)
    trace.stop()
    assert "the memory of a batch" in measure(trace, [x], [total], 1.0).abstained


def test_large_steps_abstain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpspec.recording.step_replay.trace.MOST_OPERATIONS", 3)
    replay = opacus_step(mlp())
    assert replay.abstained == "it has more than 3 operations"


def test_single_records_abstain() -> None:
    assert opacus_step(mlp(), batch=features(1)).abstained == "its batch has fewer than two records"


@pytest.mark.parametrize("read", [Tensor.tolist, Tensor.numpy, Tensor.__array__])
def test_class_weights_that_python_counts_are_not_replayed(read: Any) -> None:
    labels, outputs = torch.tensor([0, 0, 0, 1, 1, 0, 1, 0]), torch.randn(8, 2, requires_grad=True)
    trace = StepTrace()
    trace.start()
    weight = torch.tensor([1.0, float(sum(read(labels)))])
    (gradient,) = torch.autograd.grad(cross_entropy(outputs, labels, weight=weight, reduction="sum"), [outputs])
    total = gradient.sum(0)
    trace.stop()
    assert "in Python" in measure(trace, [labels], [total], 1.0, gradients=[gradient]).abstained


def test_a_sum_from_outside_the_trace_is_not_replayed() -> None:
    x, trace = torch.randn(4, 3), StepTrace()
    trace.start()
    doubled = 2.0 * x
    trace.stop()
    assert "not a result" in measure(trace, [x], [doubled.sum(0)], 1.0).abstained
