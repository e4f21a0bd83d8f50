"""Contributions of a record above the clip norm."""

from pathlib import Path
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping, register_norm_sampler
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from support.public_mistakes.parts import (
    FEATURES,
    SECRET,
    OpacusTraining,
    OwnLoop,
    mistake,
    norms_of,
    opacus_loop,
    own_loop,
    rdp_epsilon,
)


def _dropping(mistaken: bool) -> OpacusTraining:
    return OpacusTraining(nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 2)))


@opacus_loop("meta-pytorch/opacus/issues/461", "deviates", "more-rows-than-records", make=_dropping)
def several_evaluations(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """Four forward passes with dropout on the same records, each with its own backward pass.

    Opacus makes one row of gradients for each backward pass. The twin calls backward() once, on the mean of the losses.
    """
    if not mistaken:
        return torch.stack([cross_entropy(training.model(x), y) for _ in range(4)]).mean()
    training.model.allow_grad_accumulation()
    for _ in range(3):
        (cross_entropy(training.model(x), y) / 4).backward()
    return cross_entropy(training.model(x), y) / 4


@opacus_loop("meta-pytorch/opacus/issues/461", "deviates", "4 rows for each record")
def augmentations_as_rows(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """Four noisy copies of each record are rows of the batch; the twin makes one copy."""
    views = 4 if mistaken else 1
    x, y = x.repeat_interleave(views, 0), y.repeat_interleave(views)
    return cross_entropy(training.model(x + 0.1 * torch.randn_like(x)), y)


def _clip_each_tensor(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool, reported: bool) -> None:
    rows = loop.rows(drawn)
    norms, total = loop.clipped(rows)
    if mistaken:
        parts = [loop.clipped([row]) for row in rows]
        total = [part[1][0] for part in parts]
        norms = torch.stack([part[0] for part in parts]).norm(dim=0) if reported else norms
    loop.step(run, drawn, norms, total, loop.noise())


@own_loop("ooples/AiDotNet/pull/1318", "deviates", "largest clipped")
def clip_each_tensor(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Each tensor's gradient is clipped to C, with noise for one C; the true norms are reported."""
    _clip_each_tensor(loop, run, drawn, mistaken, True)


@own_loop("fedbiomed/fedbiomed/issues/1443", "deviates", "contributes more than the clip norm")
def clip_each_tensor_believed(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The same, but the loop reports at most C for each record, as its author believes."""
    _clip_each_tensor(loop, run, drawn, mistaken, False)


@own_loop("dp-lora 0.1.0", "deviates", "longer than")
def sums_carried_over(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The dictionary of clipped sums is cleared only in a method that the trainer does not call."""
    norms, total = loop.clipped(loop.rows(drawn))
    if mistaken and loop.state is not None:
        total = [earlier + part for earlier, part in zip(loop.state, total, strict=True)]
    loop.state = total
    loop.step(run, drawn, norms, total, loop.noise())


@mistake("meta-pytorch/opacus/issues/313", "deviates", "without noise")
def unused_private_model(folder: Path, mistaken: bool) -> float:
    """The result of ``make_private`` is stored, and the original model and optimizer are trained."""
    training = OpacusTraining()
    model, optimizer = (training.plain, training.inner) if mistaken else (training.model, training.optimizer)
    with training.recorder(folder):
        if mistaken:
            training.model.disable_hooks()
        for _ in range(2):
            for x, y in training.loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
    return rdp_epsilon(1.1, 0.1, 20)


class MeanOfTokens(nn.Module):
    """Classifies a sequence (b, t, 20) by the mean of its tokens' logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).mean(1)


def norms_with_a_flattened_bias(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> dict[Any, Tensor]:
    """Gradient norms (b,) of a linear layer over tokens, where the bias' is that of all tokens' gradients in a row."""
    rows = torch.einsum("btk,bti->bki", backprops, activations[0])
    return {layer.weight: rows.flatten(1).norm(dim=1), layer.bias: backprops.flatten(1).norm(dim=1)}


def sequences(records: int = 300, length: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(SECRET)
    x = torch.randn(records, length, FEATURES, generator=generator)
    return TensorDataset(x, (x[:, :, 0].mean(1) > 0).long())


@mistake("meta-pytorch/opacus/pull/751", "deviates", "norm")
def ghost_norm_of_a_bias(folder: Path, mistaken: bool) -> float:
    """Ghost clipping with a registered norm of linear layers that is wrong for a bias over several tokens."""
    registered = GradSampleModuleFastGradientClipping.NORM_SAMPLERS
    right = registered[nn.Linear]
    if mistaken:
        register_norm_sampler(nn.Linear)(norms_with_a_flattened_bias)
    try:
        loss = nn.CrossEntropyLoss()
        training = OpacusTraining(MeanOfTokens(), sequences(), grad_sample_mode="ghost", criterion=loss, clip=0.3)
        for x, y in training.recorded(folder):
            training.step(training.criterion(training.model(x), y))
    finally:
        registered[nn.Linear] = right
    return training.epsilon()


@mistake("meta-pytorch/opacus/pull/751", "deviates", "contributes more than the clip norm")
def ghost_norm_in_an_own_loop(folder: Path, mistaken: bool) -> float:
    """An own two-pass ghost clipping of a linear layer over tokens, with the same wrong norm of the bias."""
    loop = OwnLoop(model=nn.Linear(FEATURES, 2))
    x, y = sequences().tensors
    for run, drawn in loop.recorded(folder, 20):
        logits = loop.model(x[drawn])
        (g,) = torch.autograd.grad(cross_entropy(logits.mean(1), y[drawn], reduction="sum"), logits)
        inner = torch.einsum("bti,bsi,btk,bsk->b", x[drawn], x[drawn], g, g)
        bias = g.flatten(1).square().sum(1) if mistaken else g.sum(1).square().sum(1)
        norms = (inner + bias).clamp_min(0).sqrt()
        factors = (loop.clip / norms.clamp_min(1e-12)).clamp_max(1.0)
        total = [torch.einsum("b,btk,bti->ki", factors, g, x[drawn]), torch.einsum("b,btk->k", factors, g)]
        loop.step(run, drawn, norms * factors, total, loop.noise())
    return loop.epsilon(20)


def _partly_labelled(mistaken: bool) -> OpacusTraining:
    x, y = sequences().tensors
    data = TensorDataset(x[:, 0], torch.where(x[:, 1, 1] > 0.8, -100, y))
    return OpacusTraining(data=data, loss_reduction="sum")


@opacus_loop("meta-pytorch/opacus/issues/792", "deviates", "other records", make=_partly_labelled)
def loss_over_labelled_records(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """``ignore_index``: the mean is over the labelled records of the batch, which a record changes."""
    total = cross_entropy(training.model(x), y, ignore_index=-100, reduction="sum")
    return total * 30 / (y >= 0).sum().clamp_min(1) if mistaken else total


def _of_several_lengths(mistaken: bool) -> OpacusTraining:
    x, _ = sequences().tensors
    lengths = torch.randint(1, 7, (300,), generator=torch.Generator().manual_seed(SECRET))
    labels = torch.where(torch.arange(6) < lengths[:, None], (x[:, :, 0] > 0).long(), -100)
    return OpacusTraining(nn.Linear(FEATURES, 2), TensorDataset(x, labels), clip=0.1)


@opacus_loop("meta-pytorch/opacus/issues/792", "deviates", "other records", make=_of_several_lengths)
def loss_over_tokens(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """A token loss divided by the number of valid tokens in the batch; the twin takes each record's mean."""
    if mistaken:
        return cross_entropy(training.model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
    tokens = cross_entropy(training.model(x).mT, y, ignore_index=-100, reduction="none")
    return (tokens.sum(1) / (y >= 0).sum(1)).mean()


@own_loop("illidanlab/dpgan/issues/4", "deviates", "clip", clip=0.2)
def clip_after_noise(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Noise is added to the sum of unclipped gradients, and the result is clipped."""
    rows = loop.rows(drawn)
    norms, total = loop.clipped(rows)
    noise, gradient = loop.noise(), None
    if mistaken:
        total = [row.sum(0) for row in rows]
        gradient = [(t + n) / 30 for t, n in zip(total, noise, strict=True)]
        length = torch.cat([part.flatten() for part in gradient]).norm()
        gradient = [part * (loop.clip / length).clamp_max(1.0) for part in gradient]
    loop.step(run, drawn, norms, total, noise, gradient=gradient)


@own_loop("NVIDIA/NVFlare/issues/462", "deviates", "clip", clip=0.2)
def cut_noisy_coordinates(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Coordinates of the noisy gradient are cut at gamma, and nothing is clipped before the noise."""
    if not mistaken:
        loop.honest(run, drawn)
        return
    rows, noise, gamma = loop.rows(drawn), loop.noise(), 0.01
    total = [row.sum(0) for row in rows]
    gradient = [((t + n) / 30).clamp(-gamma, gamma) for t, n in zip(total, noise, strict=True)]
    loop.step(run, drawn, norms_of(rows), total, noise, gradient=gradient)


def _clip_the_mean_of_groups(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool, repeated: bool) -> None:
    groups = drawn.split(4 if mistaken else 1)
    means = [[row.mean(0) for row in loop.rows(group)] for group in groups]
    norms, total = loop.clipped([torch.stack(parts) for parts in zip(*means, strict=True)])
    norms = norms.repeat_interleave(torch.tensor([len(group) for group in groups])) if repeated else norms
    loop.step(run, drawn, norms, total, loop.noise(), 30 / 4 if mistaken else 30)


@own_loop("tensorflow/privacy/issues/81", "deviates", "drawn records without a clipped norm")
def clip_the_mean_of_groups(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Gradients are averaged over groups of four, and each mean is clipped to C, with noise for C."""
    _clip_the_mean_of_groups(loop, run, drawn, mistaken, False)


@own_loop("tensorflow/privacy/issues/620", "deviates", "changes the results of other records")
def clip_the_mean_of_groups_believed(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The same, but the loop reports the norm of its group for each record."""
    _clip_the_mean_of_groups(loop, run, drawn, mistaken, True)
