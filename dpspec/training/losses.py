"""Losses of records: dpspec's own, and functions of plugins, which are checked and computed for each record alone.

A loss maps outputs (b, k) and labels (b,) to values (b,). Clipping bounds the contribution of every record for any
loss, so bounds do not depend on it, provided that the loss of a record depends on its own row only.
"""

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpspec.contract import ModelError
from dpspec.contract.providers import RecordLoss


def cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """-sum_k t_k ln softmax(outputs)_k, t = (1 - label_smoothing) one-hot(target) + label_smoothing / classes."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """sum_k (outputs_k - [k = target])^2; (outputs_0 - target)^2 for real-valued targets."""
    if targets.is_floating_point():
        return (outputs[:, 0] - targets).square()
    return (outputs - _indicators(outputs, targets)).square().sum(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Sum over classes k of the cross entropy of sigmoid(outputs_k) with [k = target], smoothed towards 1/2."""
    labels = _indicators(outputs, targets) * (1.0 - label_smoothing) + label_smoothing / 2.0
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").sum(1)


def huber(outputs: Tensor, targets: Tensor, *, threshold: float = 1.0) -> Tensor:
    """d^2 / 2 up to |d| = threshold and threshold (|d| - threshold / 2) beyond, with d = outputs_0 - target."""
    return nn.functional.huber_loss(outputs[:, 0], targets, reduction="none", delta=threshold)


def _indicators(outputs: Tensor, targets: Tensor) -> Tensor:
    """[k = target] (b, k), by a comparison that ``torch.func.vmap`` supports."""
    return (torch.arange(outputs.shape[1], device=outputs.device) == targets.unsqueeze(1)).to(outputs.dtype)


class SeparateLoss:
    """A loss of a plugin, called with one record at a time under ``torch.func.vmap``, so that records cannot mix."""

    def __init__(self, function: RecordLoss) -> None:
        self._function = function

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = vmap(lambda output, target: self._function(output[None], target[None])[0])(outputs, targets)
        return losses


#: Number of records of a batch of the check.
_BATCH = 5


def checked_loss(function: RecordLoss, classes: int) -> RecordLoss:
    """A loss of a plugin that passed the check on random outputs.

    In two batches, a reordered one and one with a replaced record, the value and the gradient of every record must
    equal the value and the gradient of the record alone.

    Args:
        function: Maps outputs (b, classes) and labels (b,) to losses (b,).
        classes: The number of classes; 1 for real-valued targets.

    Raises:
        ModelError: The function draws random numbers, returns something else than a differentiable loss per record, or
            mixes records.
    """
    source, real = torch.Generator().manual_seed(0), classes == 1
    outputs = 3.0 * torch.randn(2, _BATCH, max(1, classes), generator=source)
    first, second = outputs[0], outputs[1] if real else outputs[1].softmax(1)
    labels = torch.randn(_BATCH, generator=source) if real else torch.arange(_BATCH) % classes
    order = torch.arange(_BATCH).flip(0)
    replaced = torch.cat([second[:1], first[1:]])
    batches = ((first, labels), (second, labels.flip(0)), (first[order], labels[order]), (replaced, labels))
    with torch.random.fork_rng(devices=[]):
        for x, y in batches:
            _require_separate(function, x, y)
        # A loss of probabilities may be undefined for other outputs.
        if not any(_evaluated(function, x, y)[1].isfinite().all() for x, y in batches[:2]):
            raise ModelError("the gradient of the loss is infinite or NaN, for real outputs and for probabilities")
        separate = SeparateLoss(function)
        try:
            separate(first, labels)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(
                "the loss uses an operation that torch.func.vmap does not support; use tensor operations without "
                f".item() and branches on values: {reason}"
            ) from error
    return separate


def _require_separate(function: RecordLoss, outputs: Tensor, targets: Tensor) -> None:
    values, gradients = _evaluated(function, outputs, targets)
    if not all(map(_alike, (values, gradients), _evaluated(function, outputs, targets))):
        raise ModelError("the loss differs in a second call: it draws random numbers, or remembers earlier records")
    for index in range(len(outputs)):
        record = slice(index, index + 1)
        alone, gradient = _evaluated(function, outputs[record], targets[record])
        if not (_alike(values[record], alone) and _alike(gradients[record], gradient)):
            pair = f"{float(alone) + 0.0:.6g} alone, {float(values[index]) + 0.0:.6g} in a batch of {len(outputs)}"
            raise ModelError(
                f"the loss mixes records: for one record it is {pair}, or its gradients differ; compute the value of a "
                "record from its row alone, without means, sums or ranks over the first dimension"
            )


def _evaluated(function: RecordLoss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (b,) and their gradients (b, k) with respect to the outputs."""
    leaf, labels = outputs.clone().requires_grad_(), targets.clone()
    with torch.enable_grad():
        losses = function(leaf, labels)
        if not isinstance(losses, Tensor) or losses.shape != (len(outputs),):
            returned = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            if isinstance(losses, Tensor) and losses.ndim == 0:
                returned = "one value for the batch"
            raise ModelError(
                f"the loss returns {returned}, and {len(outputs)} records need shape [{len(outputs)}]: return one "
                "value per record, without a mean or sum over records (reduction='none')"
            )
        if not losses.requires_grad:
            raise ModelError("the loss does not depend on the outputs by differentiable operations")
        gradients = torch.autograd.grad(losses.sum(), leaf)[0]
    if not torch.equal(labels, targets):
        raise ModelError("the loss changes its targets in place")
    return losses.detach(), gradients


def _alike(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)
