"""What a script made of one data set: its parts, and the constants that they hold, by name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec.recording.watching import recognised

#: What ``make`` may return by name besides constants of its own.
PARTS = ("model", "optimizer", "loader", "engine", "scheduler", "loss", "dataset")

#: What the model begins with.
WEIGHTS = "initial weights and buffers"

#: A constant as it is compared: bit by bit, in words.
Constants: TypeAlias = dict[str, str]


class Made:
    """The parts of one training that was set up, and not begun."""

    def __init__(self, found: Any) -> None:
        """Raises ``UsageError`` for what is no mapping, and for parts that the recorder refuses by name."""
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            raise UsageError(f"make must return a mapping from names to parts, got {type(found).__name__}")
        self.model: nn.Module | None = found.get("model")
        self.optimizer: Any = recognised.unwrapped(found.get("optimizer"))
        self.loader: Any = found.get("loader")
        self.scheduler: Any = found.get("scheduler")
        self.loss: Any = found.get("loss")
        self.dataset: Any = found.get("dataset", getattr(self.loader, "dataset", None))
        if self.model is not None:
            recognised.refuse_model(self.model)
        self.clipping = None if self.optimizer is None else recognised.clipping_of(self.optimizer)
        self._own = {key: value for key, value in found.items() if key not in PARTS}

    def parameters(self) -> list[Tensor]:
        """Those of the model, in its order."""
        return [] if self.model is None else list(self.model.parameters())

    def constants(self) -> Constants:
        """All that is fixed before the first step, by name."""
        return dict(
            [*self._of_model(), *self._of_optimizer(), *self._of_loader(), *self._of_scheduler(), *self._said()]
        )

    def _of_model(self) -> Iterator[tuple[str, str]]:
        if self.model is not None:
            tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
            yield "layers", ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors)
            yield WEIGHTS, digest([tensor for _, tensor in tensors])[:12]

    def _of_optimizer(self) -> Iterator[tuple[str, str]]:
        optimizer = self.optimizer
        if optimizer is None:
            return
        if self.clipping is not None:
            mean = optimizer.loss_reduction == "mean"
            yield "divisor", text_of(optimizer.expected_batch_size if mean else 1)
            yield "clip norm", text_of(optimizer.max_grad_norm)
            yield "noise multiplier", text_of(optimizer.noise_multiplier)
        for number, group in enumerate(optimizer.param_groups):
            of = f" of group {number}" if len(optimizer.param_groups) > 1 else ""
            for key, value in group.items():
                if key != "params" and is_constant(value):
                    yield f"{'learning rate' if key == 'lr' else key}{of}", text_of(value)

    def _of_loader(self) -> Iterator[tuple[str, str]]:
        """How batches are drawn. How many a loader has that goes through all records follows from their number, and a
        loop that counts its own steps does not ask: such a number is compared where the script names it."""
        if self.loader is None:
            return
        sampler = recognised.sampler_of(self.loader)
        yield "sampling", sampler.scheme
        if sampler.rate is not None:
            yield "rate", text_of(sampler.rate)
            yield "steps of an epoch", text_of(len(self.loader))
        elif sampler.batch_size is not None:
            yield "batch size", text_of(sampler.batch_size)

    def _of_scheduler(self) -> Iterator[tuple[str, str]]:
        if self.scheduler is not None:
            for key, value in sorted(self.scheduler.state_dict().items()):
                if is_constant(value):
                    yield f"schedule's {key.lstrip('_')}", text_of(value)

    def _said(self) -> Iterator[tuple[str, str]]:
        for key, value in self._own.items():
            if not is_constant(value):
                raise UsageError(
                    f"make returns {key!r}, a {type(value).__name__}, which is no constant; parts are "
                    f"{', '.join(PARTS)}, and all else numbers, texts, tensors, or lists of these"
                )
            yield key, text_of(value)


def is_constant(value: Any) -> bool:
    """Whether something is compared as it is: a number, a text, a tensor, or a list or mapping of these."""
    if isinstance(value, Mapping):
        return all(is_constant(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(is_constant(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str | Tensor | np.ndarray | np.generic)


def text_of(value: Any) -> str:
    """A text that two constants share if they are the same, bit by bit; arrays as a digest."""
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
    """Of a record, or of tensors: types, shapes and bytes; of anything else its ``repr``."""
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
