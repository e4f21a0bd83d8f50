"""The sensitivity probe: the noise-free clipped sum, recomputed with and without a record, on a copy of the model.

At random calls of ``clip_and_accumulate`` the probe fetches some records of the batch again, runs the user's loss
through a copy of the model, and clips and sums as the optimizer does:

    S(B) = sum over j in B of clip(g_j(B)),    change = |S(B) - S(B without i)|,
    influence = |sum over j != i of clip(g_j(B)) - clip(g_j(B without i))|.

The change is at most one clip norm, and the influence is rounding, if no contribution depends on another record, as
with batch normalization. Dropout is off in the copy. If the model is still random, B without i is replaced by B with
another record at i, under the same seed.

The probe also compares g_j(B) with the per-sample gradients of the training. Ghost clipping computes no such gradients:
there it compares the sum of the batch.
"""

import contextlib
import copy
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.recording.folder.step_record import ROUNDING, Indices
from dpspec.recording.recognized import Loss, inner_module, losses_of
from dpspec.recording.sums.clipped_sums import clip_factors

#: Call n is probed with probability min(1, _FIRST / n), on _RECORDS records of the batch; _REMOVED records are removed.
_FIRST, _RECORDS, _REMOVED = 2, 16, 2

#: Largest number of coordinates in the gradients of a probe, and largest batch whose sum is computed again.
_MOST_NUMBERS, _MOST_RECORDS = 5 * 10**7, 4096

#: Gradients agree if they differ by this, relative to their length.
_AGREE = 1e-4

#: A gradient shorter than this share of the longest one is compared at this length: rounding leaves an absolute error.
_SHORT = 1e-2


class SensitivityProbe:
    """Probes calls of one optimizer; results are counts and maxima over all calls."""

    def __init__(self, model: Any, optimizer: Any, clipping: str, loss: Loss, loader: Any) -> None:
        """loss: ``loss(model, batch)`` returns the loss of each record, (b,)."""
        self._model, self._optimizer, self._clipping, self._loss = model, optimizer, clipping, loss
        self._dataset, self._collate = loader.dataset, getattr(loader, "collate_fn", None)
        frozen = [p for p in inner_module(model).parameters() if not (p.requires_grad or p.is_inference())]
        self._versions = {id(p): p._version for p in frozen}
        self._random = random.SystemRandom()
        self._calls = self._probed = self._removed = self._confirmed = 0
        self._change = self._influence = 0.0
        self.failure = ""

    @property
    def found(self) -> list[float]:
        """[probed calls, removed records, largest change and influence in clip norms, calls whose gradients the loss
        reproduces]."""
        change, influence = (min(value, 1e9) for value in (self._change, self._influence))
        return [self._probed, self._removed, change, influence, self._confirmed]

    def observe(self, drawn: Indices, gradients: Sequence[Tensor] | None) -> None:
        """A call begins, with the records (b,) of its batch and their gradients, each (b, ...); None if ghost."""
        self._calls += 1
        size = len(drawn)
        aligned = gradients is None or len(gradients[0]) == size
        if self.failure or size < 2 or not aligned or self._random.random() * self._calls >= _FIRST:
            return
        try:
            with same_randomness(self._optimizer.params[0].device), torch.enable_grad():
                self._probe(drawn, gradients)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"[:200]

    def _probe(self, drawn: Indices, gradients: Sequence[Tensor] | None) -> None:
        numbers = sum(p.numel() for p in self._optimizer.params)
        count = max(2, min(len(drawn), _RECORDS, _MOST_NUMBERS // max(1, numbers)))
        positions = sorted(self._random.sample(range(len(drawn)), count))
        items = [self._dataset[int(drawn[position])] for position in positions]
        frozen = [p for p in inner_module(self._model).parameters() if id(p) in self._versions and not p.requires_grad]
        shared = [p for p in frozen if self._versions[id(p)] == p._version]
        model_copy = _Copy(self._model, self._optimizer, self._loss, self._collate, shared)
        whole = model_copy.gradients(items)
        for removed in self._random.sample(range(count), min(_REMOVED, count)):
            self._remove(model_copy, items, whole, removed)
        self._probed += 1
        if gradients is None:
            self._compare_sum(model_copy, drawn)
        else:
            self._compare(whole, [g.detach()[positions].flatten(1) for g in gradients])

    def _remove(self, model_copy: "_Copy", items: list[Any], whole: list[Tensor], removed: int) -> None:
        remaining = [item for position, item in enumerate(items) if position != removed]
        remaining_rows = torch.tensor([position for position in range(len(items)) if position != removed])
        full = self._clipped(whole)
        without = self._clipped(model_copy.gradients(remaining))
        influence = self._length([(a[remaining_rows] - b).sum(0) for a, b in zip(full, without, strict=True)])
        change = self._length([a.sum(0) - b.sum(0) for a, b in zip(full, without, strict=True)])
        if influence > ROUNDING and model_copy.is_random(items, whole):
            first, *later = remaining
            replaced_items = [*items[:removed], later[0] if later else first, *items[removed + 1 :]]
            with same_randomness(model_copy.device, model_copy.seed):
                full = self._clipped(model_copy.gradients(items))
            with same_randomness(model_copy.device, model_copy.seed):
                replaced = self._clipped(model_copy.gradients(replaced_items))
            influence = self._length(
                [(a[remaining_rows] - b[remaining_rows]).sum(0) for a, b in zip(full, replaced, strict=True)]
            )
            change = self._length([a[removed] for a in full]) + influence
        self._removed += 1
        self._influence, self._change = max(self._influence, influence), max(self._change, change)

    def _compare(self, mine: list[Tensor], theirs: list[Tensor]) -> None:
        lengths = torch.stack([g.double().square().sum(1) for g in mine]).sum(0).sqrt()
        squares = [(t.double() - m.double()).square().sum(1) for t, m in zip(theirs, mine, strict=True)]
        differences = torch.stack(squares).sum(0).sqrt() / lengths.clamp(min=_SHORT * float(lengths.max()))
        self._confirmed += bool((lengths > 0.0).all() and (differences <= _AGREE).all())

    def _compare_sum(self, model_copy: "_Copy", drawn: Indices) -> None:
        if len(drawn) > _MOST_RECORDS:
            return
        items = [self._dataset[int(index)] for index in drawn]
        totals: list[Tensor] = []
        chunk = max(1, min(_RECORDS, _MOST_NUMBERS // max(1, sum(p.numel() for p in self._optimizer.params))))
        for start in range(0, len(items), chunk):
            clipped = [c.sum(0) for c in self._clipped(model_copy.gradients(items[start : start + chunk]))]
            totals = clipped if not totals else [a + b for a, b in zip(totals, clipped, strict=True)]
        pairs = zip(self._optimizer.params, totals, strict=True)
        distance = self._length([p.grad.detach().reshape(-1) - total for p, total in pairs])
        self._confirmed += distance <= ROUNDING

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        factors = clip_factors(self._optimizer, self._clipping, [torch.linalg.vector_norm(g, dim=1) for g in gradients])
        return [g * factor[:, None] for g, factor in zip(gradients, factors, strict=True)]

    def _length(self, tensors: list[Tensor]) -> float:
        squares = sum(float(tensor.double().square().sum()) for tensor in tensors)
        return math.sqrt(squares) / float(self._optimizer.max_grad_norm)


class _Copy:
    """A copy of the model, except for ``shared``: frozen parameters that no pass has written to."""

    def __init__(self, model: Any, optimizer: Any, loss: Loss, collate: Any, shared: Sequence[nn.Parameter]) -> None:
        from opacus import GradSampleModule

        inner = inner_module(model)
        names = {id(p): name for name, p in inner.named_parameters()}
        # torch's wrapper for several processes cannot be copied, and the hooks that refer to it are removed
        wrappers = [
            module for module in (model, getattr(model, "_module", None)) if module is not None and module is not inner
        ]
        originals: list[Any] = [*shared, *(wrappers if len(wrappers) > 1 else [])]
        plain = copy.deepcopy(inner, {id(original): original for original in originals})
        for module in plain.modules():
            for hooks in (
                module._forward_hooks,
                module._backward_hooks,
                module._forward_pre_hooks,
                module._backward_pre_hooks,
            ):
                for key, hook in list(hooks.items()):
                    if str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith("opacus."):
                        del hooks[key]
            for name in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
                vars(module).pop(name, None)
        self._model = GradSampleModule(
            plain,
            batch_first=getattr(model, "batch_first", True),
            loss_reduction=str(optimizer.loss_reduction),
            strict=False,
            force_functorch=getattr(model, "force_functorch", False),
        )
        self._model.train(model.training)
        for module in plain.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        copied = dict(plain.named_parameters())
        self._parameters: list[Any] = [copied[names[id(p)]] for p in optimizer.params]
        self._loss, self._collate, self._mean = loss, collate, optimizer.loss_reduction == "mean"
        self.device = self._parameters[0].device
        self.seed = random.SystemRandom().getrandbits(62)

    def gradients(self, items: list[Any]) -> list[Tensor]:
        collate = self._collate or torch.utils.data.default_collate
        losses = losses_of(self._loss, self._model, collate(list(items)), len(items))
        reduced: Any = losses.mean() if self._mean else losses.sum()
        reduced.backward()
        per_sample_gradients = [p.grad_sample.detach().reshape(len(items), -1) for p in self._parameters]
        for p in self._model.parameters():
            p.grad = p.grad_sample = None
        return per_sample_gradients

    def is_random(self, items: list[Any], whole: list[Tensor]) -> bool:
        again = self.gradients(items)
        return not all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(again, whole, strict=True))


@contextlib.contextmanager
def same_randomness(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch at the end; ``seed`` seeds them at the beginning.

    device: the only one whose generator may be used; None for all.
    """
    python, numpy, devices = random.getstate(), np.random.get_state(), range(torch.cuda.device_count())
    if device is not None:
        devices = range(device.index or 0, (device.index or 0) + 1) if device.type == "cuda" else range(0)
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                torch.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
