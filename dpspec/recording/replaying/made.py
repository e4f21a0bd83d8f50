"""The training that a script makes of one dataset: its parts, its constants by name, and one update."""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.recording import recognized

#: The names of parts in the result of ``make``; all others are constants.
PARTS = ("model", "optimizer", "loader", "engine", "scheduler", "loss", "dataset")

#: The name of the model's initial state.
WEIGHTS = "initial weights and buffers"

#: Updates that differ by less than this part of their length are the same, because orders of summation vary.
TOLERANCE = 1e-4

#: The number of gradients of an update without a loss; some are longer than any clip norm, some shorter.
_GRADIENTS = 8


class SetUp:
    """A training that was set up of one dataset with a seed: its parts, constants, weights and one update.

    Attributes:
        constants: By name.
        weights: The initial parameters.
        generator: The state of torch's generator after the set-up.
    """

    def __init__(self, make: Callable[[Any], Mapping[str, Any]], dataset: Any, seed: int) -> None:
        """Raises ``UsageError`` for anything but a mapping, and for parts that the recorder refuses by name."""
        self.seed = seed
        with seeded(seed):
            found = make(dataset)
            if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
                raise UsageError(f"make must return a mapping from names to parts, got {type(found).__name__}")
            self.model: nn.Module | None = found.get("model")
            self.optimizer: Any = recognized.unwrapped(found.get("optimizer"))
            self.loss: Any = found.get("loss")
            self.dataset: Any = found.get("dataset", getattr(found.get("loader"), "dataset", None))
            if self.model is not None:
                recognized.refuse_model(self.model)
            self.clipping = None if self.optimizer is None else recognized.clipping_of(self.optimizer)
            self.generator = torch.get_rng_state()
        self.parameters = [] if self.model is None else list(self.model.parameters())
        self.constants = dict(self._constants(found))
        self.weights = [p.detach().clone() for p in self.parameters]

    def _constants(self, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        optimizer, loader, scheduler = self.optimizer, found.get("loader"), found.get("scheduler")
        if self.model is not None:
            tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
            yield "layers", ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors)
            yield WEIGHTS, digest([tensor for _, tensor in tensors])[:12]
        if self.clipping is not None:
            yield "divisor", text_of(optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1)
            yield "clip norm", text_of(optimizer.max_grad_norm)
            yield "noise multiplier", text_of(optimizer.noise_multiplier)
        groups = [] if optimizer is None else optimizer.param_groups
        for number, group in enumerate(groups):
            of = f" of group {number}" if len(groups) > 1 else ""
            for key, value in group.items():
                if key != "params" and is_constant(value):
                    yield f"{'learning rate' if key == 'lr' else key}{of}", text_of(value)
        # The number of batches of a loader over all records follows from the number of records.
        if loader is not None:
            sampler = recognized.sampler_of(loader)
            yield "sampling", sampler.scheme
            if sampler.rate is not None:
                yield "rate", text_of(sampler.rate)
                yield "steps of an epoch", text_of(len(loader))
            elif sampler.batch_size is not None:
                yield "batch size", text_of(sampler.batch_size)
        for key, value in sorted(scheduler.state_dict().items()) if scheduler is not None else ():
            if is_constant(value):
                yield f"schedule's {key.lstrip('_')}", text_of(value)
        for key, value in found.items():
            if key not in PARTS and not is_constant(value):
                raise UsageError(
                    f"make returns {key!r}, a {type(value).__name__}, which is not a constant; parts are "
                    f"{', '.join(PARTS)}, and all else numbers, texts, tensors, or lists of these"
                )
            if key not in PARTS:
                yield key, text_of(value)

    def record(self, index: int, seed: int) -> Any:
        """One prepared record; ``seed`` determines random transformations."""
        with seeded(seed):
            return self.dataset[index]

    def update(self, weights: Sequence[Tensor], records: Sequence[Any]) -> Tensor | str:
        """(2, P) float64 the change of ``weights`` by one step and its gradients; or the reason why it is impossible.

        With a ``loss`` the step uses ``records``, without one gradients drawn from the seed. Raises ``UsageError`` if
        ``loss`` returns neither one number nor one for each record.
        """
        model, optimizer = self.model, self.optimizer
        if [p.shape for p in self.parameters] != [p.shape for p in weights]:
            return "one step: the models are not of one shape"
        with torch.no_grad():
            for p, value in zip(self.parameters, weights, strict=True):
                p.copy_(value)
        if model is None or optimizer is None:
            return "one step: make returns no model, or no optimizer"
        if self.loss is not None and not records:
            return "one step: make returns a loss, and no records that all datasets share"
        if self.loss is None and self.clipping not in (None, "flat"):
            return f"one step: {self.clipping} clipping takes gradients of records; return a loss(model, batch)"
        if self.loss is None and self.clipping is None:
            return "one step: gradients are clipped outside the optimizer; return a loss, or its constants"
        generator = getattr(optimizer, "generator", None)
        with seeded(self.seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            if isinstance(generator, torch.Generator):
                generator.manual_seed(self.seed)
            stepped = [p for group in optimizer.param_groups for p in group["params"]]
            before = _flat(stepped)
            optimizer.zero_grad(set_to_none=True)
            if self.loss is not None:
                model.train()
                loss = self.loss(model, default_collate(list(records)))
                if self.clipping == "ghost" and isinstance(loss, Tensor):
                    return "one step: ghost clipping is done by the criterion of make_private: return its loss"
                self._reduced(loss, len(records)).backward()
            else:
                _draw(optimizer.params, self.seed)
            optimizer.step()
            got = [torch.zeros_like(p) if p.grad is None else p.grad for p in stepped]
            return torch.stack([_flat(stepped) - before, _flat(got)])

    def _reduced(self, loss: Any, records: int) -> Any:
        """The loss of a batch: the given one, or the losses of its records, (b,), reduced as Opacus' optimizer expects.

        The loss of ghost clipping's criterion is not a tensor. Raises ``UsageError`` for anything else.
        """
        if not isinstance(loss, Tensor) and self.clipping == "ghost" and callable(getattr(loss, "backward", None)):
            return loss
        if not isinstance(loss, Tensor) or tuple(loss.shape) not in ((), (records,)):
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(
                f"loss(model, batch) must give the mean loss of a batch of {records} records, one number, or the loss "
                f"of each, shape ({records},), got {what}: keep the reduction of a loss of torch, or give it "
                "reduction='none'"
            )
        if not loss.requires_grad:
            raise UsageError(
                "loss(model, batch) gave a number that does not follow from the model's parameters: compute it with "
                "gradients, from the model that it is given"
            )
        summed = getattr(self.optimizer, "loss_reduction", "mean") == "sum"
        return loss if loss.ndim == 0 else loss.sum() if summed else loss.mean()


def is_constant(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(is_constant(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(is_constant(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str | Tensor | np.ndarray | np.generic)


def text_of(value: Any) -> str:
    """A string that is equal for constants with equal bits; arrays as a digest."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return text_of(value.item()) if value.ndim == 0 else f"tensor {tuple(value.shape)} {digest(value)[:12]}"
    if isinstance(value, np.generic):
        return text_of(value.item())
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {digest(value)[:12]}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {text_of(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))  # 3 and 3.0 are one constant
    return repr(value)


def digest(value: Any) -> str:
    """SHA-256 of types, shapes and bytes of a record or of tensors; of the ``repr`` of anything else."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        rows = value.detach().cpu().contiguous()
        found.update(f"{rows.dtype} {tuple(rows.shape)} ".encode())
        found.update(rows.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        found.update(f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key, one in value.items():
            found.update(f"{key!r}:".encode())
            _feed(found, one)
    elif isinstance(value, list | tuple):
        found.update(f"{len(value)} of ".encode())
        for one in value:
            _feed(found, one)
    else:
        found.update(repr(value).encode())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all global generators, and restore them afterwards."""
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


def _draw(parameters: Sequence[nn.Parameter], seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    rows = [torch.randn(_GRADIENTS, *p.shape, generator=source) for p in parameters]
    lengths = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
    wanted = torch.logspace(-2, 2, _GRADIENTS) / lengths
    for parameter, row in zip(parameters, rows, strict=True):
        scaled: Any = row * wanted.reshape(-1, *[1] * (row.ndim - 1))
        parameter.grad_sample = scaled.to(parameter)  # type: ignore[attr-defined]


def apart(one: Tensor, other: Tensor) -> float:
    """The largest distance of two rows (2, P), relative to the first one's length; infinite for a row of zeros."""
    if one.shape != other.shape:
        return float("inf")
    distances, lengths = (one - other).norm(dim=1), one.norm(dim=1)
    return float(torch.where(distances > 0.0, distances / lengths, 0.0).max())


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.detach().cpu().double().reshape(-1) for p in parameters])
