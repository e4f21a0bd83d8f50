"""Honest and faulty steps in many styles: the sum moves by at most two clip norms, and other rows stay, or not."""

import random
from collections import OrderedDict, namedtuple
from copy import deepcopy
from typing import Any

import pytest
import torch
from support.replayed_steps import (
    CLIP,
    features,
    flat_sum,
    mean_loss,
    microbatch_step,
    mlp,
    norms,
    opacus_step,
    opacus_trace,
    own_step,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils._pytree import tree_leaves, tree_map

from dpspec_recording.step_replay import measure as measuring
from dpspec_recording.step_replay import trace as trace_module
from dpspec_recording.step_replay.measure import StepReplay, measure
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, mapped, tensors_in

pytest.importorskip("opacus")


class Apply(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Convolutional(nn.Sequential):
    def __init__(self) -> None:
        layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Linear(4, 2))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        from opacus.layers import DPLSTM

        super().__init__()
        self.lstm, self.out = DPLSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[1][0][-1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(20, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x)
        return self.out((query @ query.T).softmax(1) @ query)


LABELS = features()[1]
IMAGES = (torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(4)), LABELS)
SERIES = (torch.randn(16, 5, 4, generator=torch.Generator().manual_seed(5)), LABELS)
TOKENS = (torch.randint(1, 50, (16, 6), generator=torch.Generator().manual_seed(6)), LABELS)
TARGETS = torch.randint(1, 50, (16, 6), generator=torch.Generator().manual_seed(7))
TARGETS[0, 2:] = 0
TEXTS = (TOKENS[0], TARGETS)


def language_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))


def noisy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)


def flipped(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(torch.where(torch.rand(len(x), 1) < 0.5, x, -x)), y)


def per_record_tokens(model: Any, x: Tensor, y: Tensor) -> Tensor:
    losses = cross_entropy(model(x).transpose(1, 2), y, ignore_index=0, reduction="none")
    return (losses.sum(1) / (y > 0).sum(1)).mean()


def guarded(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(model(x), y)
    return loss if bool(torch.isfinite(loss)) else 0.0 * loss


def summed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="sum") / len(y)


def smoothed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, label_smoothing=0.1)


def binary(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())


HONEST = {
    "plain": lambda: opacus_step(mlp()),
    "dropout": lambda: opacus_step(mlp(nn.Dropout(0.3))),
    "group norm": lambda: opacus_step(mlp(nn.GroupNorm(4, 32))),
    "layer norm": lambda: opacus_step(mlp(nn.LayerNorm(32))),
    "functorch": lambda: opacus_step(mlp(), mode="functorch"),
    "expanded weights": lambda: opacus_step(mlp(), mode="ew"),
    "ghost": lambda: opacus_step(mlp(), mode="ghost"),
    "ghost, group norm": lambda: opacus_step(mlp(nn.GroupNorm(4, 32)), mode="ghost"),
    "noise as augmentation": lambda: opacus_step(mlp(), noisy),
    "flips as augmentation": lambda: opacus_step(mlp(), flipped),
    "guard against NaN": lambda: opacus_step(mlp(), guarded),
    "sum over the batch size": lambda: opacus_step(mlp(), summed),
    "label smoothing": lambda: opacus_step(mlp(), smoothed),
    "binary loss": lambda: opacus_step(mlp(), binary),
    "CNN": lambda: opacus_step(Convolutional(), batch=IMAGES),
    "CNN, ghost": lambda: opacus_step(Convolutional(), batch=IMAGES, mode="ghost"),
    "DPLSTM": lambda: opacus_step(Recurrent(), batch=SERIES),
    "embedding": lambda: opacus_step(nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(48, 2)), batch=TOKENS),
    "token means per record": lambda: opacus_step(language_model(), per_record_tokens, TEXTS),
    "small batch": lambda: opacus_step(mlp(), batch=features(3)),
    "own loop, vmap": lambda: own_step(),
    "own loop, vmap in chunks": lambda: own_step(chunk=4),
    "own loop, matrix product": lambda: own_step(
        lambda rows, clip: [
            ((clip / norms(rows)).clamp_max(1.0) @ row.flatten(1)).view(row.shape[1:]) for row in rows.values()
        ]
    ),
    "own loop, in-place sum": lambda: own_step(in_place_sum),
    "own loop, deep copy": lambda: own_step(lambda rows, clip: deepcopy(flat_sum(rows, clip))),
    "own loop, deep copy of rows": lambda: own_step(lambda rows, clip: flat_sum(deepcopy(rows), clip)),
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


def class_weighted(model: Any, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.zeros(2).index_add_(0, y, torch.ones(len(y)))
    return cross_entropy(model(x), y, weight=len(y) / (2 * counts.clamp_min(1)))


def weighted_mean(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, weight=torch.tensor([1.0, 19.0]))


def in_batch_negatives(model: Any, x: Tensor, y: Tensor) -> Tensor:
    embedded = normalize(model(x))
    return cross_entropy(embedded @ embedded.T / 0.1, torch.arange(len(x)))


def dice(model: Any, x: Tensor, y: Tensor) -> Tensor:
    probabilities = model(x).softmax(1)[:, 1]
    return 1 - 2 * (probabilities * y).sum() / (probabilities.sum() + y.sum() + 1)


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


def two_views(model: Any, x: Tensor, y: Tensor) -> Tensor:
    first, second = normalize(model(x)), normalize(model(x + 0.1 * torch.randn_like(x)))
    return cross_entropy(first @ second.T / 0.1, torch.arange(len(x)))


def coefficients_of_one(model: Any) -> None:
    model.get_clipping_coef = lambda: torch.ones(16)


def norms_too_small(model: Any) -> None:
    norm_sample = model.get_norm_sample
    model.get_norm_sample = lambda: 0.3 * norm_sample()


def mean_clipped(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    means = [row.mean(0) for row in rows.values()]
    factor = (clip / torch.stack([mean.norm() for mean in means]).norm()).clamp_max(1.0)
    return [len(next(iter(rows.values()))) * factor * mean for mean in means]


def each_layer(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    return [flat_sum({"layer": row}, clip)[0] for row in rows.values()]


FAULTY = {
    "standardization by the batch": lambda: opacus_step(mlp(Apply(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5)))),
    "centering in a layer": lambda: opacus_step(mlp(Apply(lambda x: x - x.mean(0)))),
    "centering of inputs": lambda: opacus_step(mlp(), centered),
    "maximum over the batch": lambda: opacus_step(mlp(Apply(lambda x: x / x.abs().amax(0)))),
    "attention across the batch": lambda: opacus_step(Attention()),
    "mixup": lambda: opacus_step(mlp(), mixed_up),
    "class weights of the batch": lambda: opacus_step(mlp(), class_weighted),
    "class-weighted mean": lambda: opacus_step(mlp(), weighted_mean),
    "in-batch negatives": lambda: opacus_step(mlp(), in_batch_negatives),
    "two views (SimCLR)": lambda: opacus_step(mlp(), two_views),
    "dice": lambda: opacus_step(mlp(), dice),
    "hard mining": lambda: opacus_step(mlp(), hard_mining),
    "loss divided by itself": lambda: opacus_step(mlp(), normalized_loss),
    "mean over tokens of the batch": lambda: opacus_step(language_model(), mean_over_tokens, TEXTS),
    "two backward passes": lambda: opacus_step(mlp(), two_passes),
    "augmentations as rows": lambda: opacus_step(mlp(), augmented),
    "ghost, standardization": lambda: opacus_step(
        mlp(Apply(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5))), mode="ghost"
    ),
    "ghost, coefficients of 1": lambda: opacus_step(mlp(), mode="ghost", fault=coefficients_of_one),
    "ghost, norms too small": lambda: opacus_step(mlp(), mode="ghost", fault=norms_too_small),
    "functorch, centering": lambda: opacus_step(mlp(), centered, mode="functorch"),
    "own loop, clipped mean": lambda: own_step(mean_clipped),
    "own loop, each layer": lambda: own_step(each_layer),
    "own loop, no clipping": lambda: own_step(lambda rows, clip: [row.sum(0) for row in rows.values()]),
    "own loop, no clipping, deep copy": lambda: own_step(
        lambda rows, clip: deepcopy([row.sum(0) for row in rows.values()])
    ),
    "own loop, coordinates": lambda: own_step(clamped),
    "own loop, largest norm of the batch": lambda: own_step(
        lambda rows, clip: [row.sum(0) * (clip / norms(rows).max()).clamp_max(1.0) for row in rows.values()]
    ),
    "own loop, norm of one layer": lambda: own_step(
        lambda rows, clip: [
            torch.einsum("i,i...", (clip / list(rows.values())[-1].norm(dim=1)).clamp_max(1.0), row)
            for row in rows.values()
        ]
    ),
    "own loop, normalized by the batch": lambda: own_step(
        lambda rows, clip: [total * (2.0 / norms(rows).mean()) for total in flat_sum(rows, clip)]
    ),
    "own loop, median of the norms": lambda: own_step(clipped_to_median),
    "own loop, unclipped buffer": lambda: own_step(lambda rows, clip: in_place_sum(rows, 1e9)),
    "own loop, microbatches without factor": lambda: microbatch_step(lambda norm: 1.0),
}


def clamped(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    return [row.clamp(-clip, clip).sum(0) for row in rows.values()]


def clipped_to_median(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    factors = (norms(rows).median() / norms(rows)).clamp_max(1.0)
    return [torch.einsum("i,i...", factors, row) for row in rows.values()]


@pytest.mark.family
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HONEST)
def test_honest_steps_move_by_two_clip_norms_and_leave_other_rows(name: str) -> None:
    replay = HONEST[name]()
    assert replay.abstained == ""
    assert replay.replacements >= measuring.MOST_REPLACEMENTS
    assert 0.0 < replay.sum_moved <= 2.0 + 1e-6
    assert (replay.outputs_moved, replay.gradients_moved) == (0.0, 0.0)
    assert not replay.is_large
    assert not replay.mixes_records


@pytest.mark.family
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
    assert "a number of Python depends on the record, for example by .item()" in replay.abstained
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


@pytest.mark.parametrize(("free", "measured"), [(8 * 10**6, True), (8 * 10**4, False)])
def test_a_step_may_take_an_eighth_of_the_free_memory(
    free: int, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MOST_BYTES", 10**3)
    monkeypatch.setattr(trace_module, "free_bytes", lambda device: free)
    x, trace = torch.randn(4, 10**4), StepTrace()
    trace.start()
    total = (2.0 * x).sum(0)
    trace.stop()
    replay = measure(trace, [x], [total], 1.0)
    assert (replay.sum_moved > 0.0) is measured
    assert ("more than 0 MiB, an eighth of the free memory" in replay.abstained) is not measured


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
    monkeypatch.setattr("dpspec_recording.step_replay.trace.MOST_OPERATIONS", 3)
    replay = opacus_step(mlp())
    assert replay.abstained == "it has more than 3 operations"


def test_single_records_abstain() -> None:
    assert opacus_step(mlp(), batch=features(1)).abstained == "its batch has fewer than two records"


@pytest.mark.filterwarnings("ignore")
def test_neither_trace_nor_replay_changes_a_bit() -> None:
    """Random state, parameters and versions are those without a trace."""

    def train(traced: bool) -> tuple[Tensor, list[Tensor], list[int]]:
        model = mlp(nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = features()
        torch.manual_seed(8)
        for _ in range(3):
            optimizer.zero_grad()
            trace = StepTrace()
            if traced:
                trace.start()
            mean_loss(model, x, y).backward()
            trace.stop()
            if traced:
                sums = [p.grad for p in model.parameters() if p.grad is not None]
                replay = measure(trace, (x, y), sums, 1.0)
                assert isinstance(replay, StepReplay)
                assert replay.abstained == ""
            optimizer.step()
        return torch.get_rng_state(), list(model.parameters()), [p._version for p in model.parameters()]

    (state, parameters, versions), (other_state, others, other_versions) = train(False), train(True)
    assert torch.equal(state, other_state)
    assert all(torch.equal(a, b) for a, b in zip(parameters, others, strict=True))
    assert versions == other_versions


def test_a_failed_trace_says_why() -> None:
    trace = StepTrace()
    trace.failure = "reason"
    with pytest.raises(AbstainError, match="reason"):
        trace.replay([], [])


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


_Pair = namedtuple("_Pair", "first second")


def test_each_result_of_a_trace_has_its_own_memory() -> None:
    """``deepcopy`` releases the memory of a result, by ``set_``, and a later result got its address: a public gradient
    was then one of the private batch."""
    trace, x = StepTrace(), torch.randn(8, 6)
    trace.start()
    for _ in range(20):
        deepcopy(x)
        torch.ones(())
    trace.stop()
    empty, ones = torch.ops.aten.new_empty.default, torch.ops.aten.ones.default
    addresses = [operation.addresses[0] for operation in trace.operations if operation.function in (empty, ones)]
    assert len(addresses) == len(set(addresses)) == 40


def test_tensors_of_arguments_are_those_of_torchs_trees():
    one, two = torch.ones(2), nn.Parameter(torch.zeros(3))
    for value in (
        one,
        (one, 1.5, None, [two, True, "a"], {"dtype": torch.float32, "more": (two, [])}),
        [_Pair(one, [two]), OrderedDict(a=one, b=(two,)), torch.max(torch.ones(2, 2), dim=0)],
        {"shape": torch.Size([2, 3]), "device": torch.device("cpu"), "empty": (), "of": slice(1, 2)},
    ):
        assert [id(x) for x in tensors_in(value)] == [id(x) for x in tree_leaves(value) if isinstance(x, Tensor)]
        seen, expected = [], []
        found = mapped(lambda item, to=seen: to.append(item) or (item, "new"), value)
        other = tree_map(lambda item, to=expected: to.append(item) or (item, "new"), value)
        assert [id(item) for item in seen] == [id(item) for item in expected]
        assert str(found) == str(other)
