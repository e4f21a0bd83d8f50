"""Recorded trainings with Opacus and plain loops, with hooks for the changes of campaigns."""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from opacus import PrivacyEngine
from support.checked_runs import CheckedRun, Question, check_run
from support.opacus_training import physical_batches
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dpspec

Run = Callable[[Path], None]
Hook = Callable[[Any], Any]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def table(count: int = 300) -> Any:
    x = torch.randn(count, 6)
    return TensorDataset(x, (x[:, 0] > 0).long())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def ignore(_: Any) -> None:
    """Do nothing."""


def opacus(
    folder: Path, *, seed: int = 0, model: Callable[[], nn.Module] = small, data: Callable[[], Any] = table,
    optimizer: Hook = sgd, parameters: Hook = lambda net: net.parameters(), epochs: int = 2, batch: int = 30,
    physical: int | None = None, setup: Hook = ignore, before: Hook = ignore,
    forward: Hook = lambda t: t.model(t.batch[0]), between: Hook = ignore, after: Hook = ignore, late: Hook = ignore,
    **options: Any,
) -> None:  # fmt: skip
    """Train with Opacus. Hooks get the objects of the training in a namespace.

    They run before the recording (``setup``), with each batch (``before``), for the logits (``forward``), after the
    backward pass (``between``), after each step (``after``), and at the end of the recording (``late``).
    """
    torch.manual_seed(seed)
    t: Any = SimpleNamespace(net=model(), data=data(), steps=0)
    t.x, t.y = getattr(t.data, "tensors", (None, None))
    engine = PrivacyEngine()
    t.model, t.opt, t.loader = engine.make_private(
        module=t.net, optimizer=optimizer(parameters(t.net)), data_loader=DataLoader(t.data, batch_size=batch),
        **{"noise_multiplier": 1.1, "max_grad_norm": 1.0, **options},
    )  # fmt: skip
    t.inner = t.opt.original_optimizer
    setup(t)
    with dpspec.record(folder, model=t.model, optimizer=t.opt, loader=t.loader, engine=engine):
        for _ in range(epochs):
            with physical_batches(t.loader, t.opt, physical) as batches:
                for t.batch in batches:
                    t.steps += 1
                    t.opt.zero_grad()
                    before(t)
                    cross_entropy(forward(t), t.batch[1]).backward()
                    between(t)
                    t.opt.step()
                    after(t)
        late(t)


def plain(
    folder: Path, *, seed: int = 0, optimizer: Hook = sgd, steps: int = 25, rate: float = 0.1, clip: float = 0.7,
    divisor: float = 30.0, total: Any = None, noise: Any = None, norms: Any = None, sampled: Any = None,
    setup: Hook = ignore, after: Hook = ignore,
) -> None:  # fmt: skip
    """Train with a plain loop. ``total``, ``noise`` and ``norms`` replace its sum, its noise and its reported norms."""
    torch.manual_seed(seed)
    t: Any = SimpleNamespace(model=small(), clip=clip, std=1.3 * clip)
    t.x, t.y = table().tensors
    t.parameters = list(t.model.parameters())
    t.inner = optimizer(t.parameters)
    setup(t)
    given: dict[str, Any] = {"noise_multiplier": 1.3, "clip_norm": clip, "rate": rate, "records": 300}
    with dpspec.record(folder, model=t.model, optimizer=t.inner, **given) as run:
        for t.steps in range(1, steps + 1):
            t.drawn = torch.nonzero(torch.rand(300) < rate).reshape(-1)
            run.sampled(t.drawn if sampled is None else sampled(t))
            t.total, t.norms = clipped_sum(t)
            t.total = t.total if total is None else total(t)
            run.clipped(t.norms if norms is None else norms(t))
            run.summed(t.total)
            t.noise = [t.std * torch.randn_like(p) for p in t.parameters] if noise is None else noise(t)
            run.noised(t.noise)
            for p, part, added in zip(t.parameters, t.total, t.noise, strict=True):
                p.grad = (part + added) / divisor
            t.inner.step()
            run.stepped()
            after(t)


def record_gradient(t: Any, index: int) -> list[Tensor]:
    """Return the gradient of one record's loss in a plain loop."""
    return list(torch.autograd.grad(cross_entropy(t.model(t.x[index, None]), t.y[index, None]), t.parameters))


def clipped_sum(t: Any, *, per_layer: bool = False) -> tuple[list[Tensor], list[float]]:
    """Return the sum of clipped gradients, and the largest clipped norm of each record."""
    total, norms = [torch.zeros_like(p) for p in t.parameters], []
    for index in t.drawn.tolist():
        found = record_gradient(t, index)
        lengths = torch.stack([part.norm() for part in found])
        lengths = lengths if per_layer else lengths.norm().expand(len(found))
        factors = (t.clip / (lengths + 1e-6)).clamp(max=1.0)
        for kept, part, factor in zip(total, found, factors, strict=True):
            kept += factor * part
        norms.append(float((factors * lengths).max()))
    return total, norms


by_opacus, by_loop = partial(partial, opacus), partial(partial, plain)


def checked(train: Run) -> CheckedRun:
    """Record a training and check a claim of epsilon 100."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(Path(scratch) / "run")
        return check_run(Path(scratch) / "run", Question(delta=1e-5, epsilon=100.0))
