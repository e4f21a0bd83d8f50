"""One update of a training that was set up, with coins that are the same for all who make it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.recording.replaying.parts import Made

#: Updates that are the same differ by less than this part of their length: the order of sums is not fixed everywhere.
TOLERANCE = 1e-4

#: How many gradients an update is made of where no loss is given; some are longer than any clip norm, some shorter.
_GRADIENTS = 8


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All generators that scripts use without naming one begin at ``seed``; afterwards they are as they were."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def update(made: Made, records: Sequence[Any], seed: int) -> Tensor | str:
    """By how much one step moves the parameters, and the gradients that it took (2, P), float64; or why none was made.

    Adam's first step hardly knows how long its gradient is: so that is compared as well.

    With a ``loss`` the step is taken on ``records``, as all others took it; without one on gradients that are drawn
    from ``seed``. Noise is drawn from ``seed`` too. Raises ``UsageError`` where ``loss`` gives neither one number nor
    one for each record.
    """
    if made.model is None or made.optimizer is None:
        return "one step: make returns no model, or no optimizer"
    if made.loss is not None and not records:
        return "one step: make returns a loss, and no records that all data sets share"
    if made.loss is None and made.clipping not in (None, "flat"):
        return f"one step: {made.clipping} clipping takes gradients of records; return a loss(model, batch)"
    if made.loss is None and made.clipping is None:
        return "one step: gradients are clipped outside the optimizer; return a loss(model, batch), or its constants"
    generator = getattr(made.optimizer, "generator", None)
    with seeded(seed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        parameters = [p for group in made.optimizer.param_groups for p in group["params"]]
        before = _flat(parameters)
        made.optimizer.zero_grad(set_to_none=True)
        if made.loss is not None:
            made.model.train()
            told = made.loss(made.model, default_collate(list(records)))
            if made.clipping == "ghost" and isinstance(told, Tensor):
                return "one step: ghost clipping is done by the criterion of make_private; return its loss from loss"
            _reduced(told, len(records), made).backward()
        else:
            _draw(made.optimizer.params, made.optimizer.max_grad_norm, seed)
        made.optimizer.step()
        got = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return torch.stack([_flat(parameters) - before, _flat(got)])


def _reduced(told: Any, records: int, made: Made) -> Any:
    """The loss of a batch, which knows ``backward``: as it was given, or what the loss of each record, (b,), makes.

    These are reduced as Opacus' optimizer takes them to be, and averaged for others. Raises ``UsageError`` for anything
    else. What is no tensor is the loss of ghost clipping's own criterion.
    """
    if not isinstance(told, Tensor) and made.clipping == "ghost" and callable(getattr(told, "backward", None)):
        return told
    single = isinstance(told, Tensor) and told.ndim == 0
    if not single and not (isinstance(told, Tensor) and tuple(told.shape) == (records,)):
        what = f"shape {tuple(told.shape)}" if isinstance(told, Tensor) else type(told).__name__
        raise UsageError(
            f"loss(model, batch) must give the mean loss of a batch of {records} records, one number, or the loss of "
            f"each, shape ({records},), got {what}: of a loss of torch, leave reduction as it is, or take 'none'"
        )
    if not told.requires_grad:
        raise UsageError(
            "loss(model, batch) gave a number that does not follow from the model's parameters: compute it with "
            "gradients, from the model that it is given"
        )
    summed = getattr(made.optimizer, "loss_reduction", "mean") == "sum"
    return told if single else told.sum() if summed else told.mean()


def _draw(parameters: Sequence[nn.Parameter], clip_norm: float, seed: int) -> None:
    """Gradients of records that are none: from a hundredth of a unit of length to a hundred of them.

    Their lengths know nothing of the clip norm: with another one others are clipped.
    """
    source = torch.Generator().manual_seed(seed)
    rows = [torch.randn(_GRADIENTS, *p.shape, generator=source) for p in parameters]
    lengths = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
    wanted = torch.logspace(-2, 2, _GRADIENTS) / lengths
    for parameter, row in zip(parameters, rows, strict=True):
        scaled: Any = row * wanted.reshape(-1, *[1] * (row.ndim - 1))
        parameter.grad_sample = scaled.to(parameter)  # type: ignore[attr-defined]


def apart(one: Tensor, other: Tensor) -> float:
    """The largest distance of two rows (2, P), as a part of the first one's length; infinite from a row of zeros."""
    if one.shape != other.shape:
        return float("inf")
    distances, lengths = (one - other).norm(dim=1), one.norm(dim=1)
    return float(torch.where(distances > 0.0, distances / lengths, 0.0).max())


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.detach().cpu().double().reshape(-1) for p in parameters])
