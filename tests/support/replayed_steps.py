"""Single steps of training, traced and replayed with other records."""

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dpspec_recording.step_replay.measure import StepReplay, measure
from dpspec_recording.step_replay.trace import StepTrace

CLIP = 0.5

#: Loss of a model on a batch.
Loss = Callable[..., Tensor]


def mean_loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def features(records: int = 16) -> tuple[Tensor, Tensor]:
    """Return features (n, 20) and labels (n,) of two classes."""
    x = torch.randn(records, 20, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def mlp(*layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(20, 32), *layers, nn.ReLU(), nn.Linear(32, 2))


def opacus_step(
    model: nn.Module,
    loss: Loss = mean_loss,
    batch: Sequence[Tensor] | None = None,
    mode: str = "hooks",
    fault: Callable[[Any], None] | None = None,
) -> StepReplay:
    """Train one step with Opacus, and replay it before its noise."""
    batch = features() if batch is None else batch
    trace, sums, outputs, gradients = opacus_trace(model, loss, batch, mode, fault)
    return measure(trace, batch, sums, CLIP, outputs=outputs, gradients=gradients, randomness=random.Random(3))


def opacus_trace(
    model: nn.Module,
    loss: Loss,
    batch: Sequence[Tensor],
    mode: str = "hooks",
    fault: Callable[[Any], None] | None = None,
) -> tuple[StepTrace, list[Any], list[Tensor], list[Tensor]]:
    """Train one step with Opacus: its trace, clipped sums, outputs and the gradients at the outputs."""
    from opacus import PrivacyEngine

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(TensorDataset(*batch), batch_size=len(batch[0])),
            noise_multiplier=1.0,
            max_grad_norm=CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
            criterion=nn.CrossEntropyLoss(),
        )
        private, optimizer = made[0], made[1]
        if fault is not None:
            fault(private)
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []

        def note(_: Any, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                outputs.append(output)
                output.register_hook(gradients.append)

        hook = private.register_forward_hook(note)
        trace = StepTrace()
        trace.start()
        try:
            optimizer.zero_grad()
            if mode == "ghost":
                made[2](private(batch[0]), batch[1]).backward()
            else:
                loss(private, *batch).backward()
                optimizer.clip_and_accumulate()
        finally:
            trace.stop()
            hook.remove()
    sums = [getattr(p, "summed_grad", None) if mode != "ghost" else p.grad for p in optimizer.params]
    assert all(total is not None for total in sums)
    return trace, sums, outputs, gradients


#: Sums per-sample gradients, by name (b, ...), clipped to a norm.
Clipping = Callable[[dict[str, Tensor], float], list[Tensor]]


def norms(rows: dict[str, Tensor]) -> Tensor:
    return torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)


def flat_sum(rows: dict[str, Tensor], clip: float) -> list[Tensor]:
    factors = (clip / norms(rows).clamp_min(1e-12)).clamp_max(1.0)
    return [torch.einsum("i,i...", factors, row) for row in rows.values()]


def own_step(clipping: Clipping = flat_sum, chunk: int | None = None) -> StepReplay:
    """Compute a clipped sum by functorch in a custom loop, and replay it."""
    x, y = features()
    model = mlp()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (record[None],)), label[None])

    trace = StepTrace()
    trace.start()
    try:
        rows = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)(parameters, x, y)
        sums = clipping(rows, CLIP)
    finally:
        trace.stop()
    return measure(trace, (x, y), sums, CLIP, randomness=random.Random(3))


def microbatch_step(factor: Callable[[Tensor], Any]) -> StepReplay:
    """Clip the gradient of each record in a separate backward pass. factor: of the norm."""
    x, y = features()
    model = mlp()
    sums = [torch.zeros_like(p) for p in model.parameters()]
    trace = StepTrace()
    trace.start()
    try:
        for record in range(len(x)):
            model.zero_grad()
            cross_entropy(model(x[record : record + 1]), y[record : record + 1]).backward()
            own = [p.grad for p in model.parameters()]
            scale = factor(torch.stack([g.norm() for g in own if g is not None]).norm())
            for total, g in zip(sums, own, strict=True):
                assert g is not None
                total += scale * g
    finally:
        trace.stop()
    return measure(trace, (x, y), sums, CLIP, randomness=random.Random(3))
