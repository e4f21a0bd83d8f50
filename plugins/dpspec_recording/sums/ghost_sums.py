"""Ghost clipping: the batches whose gradient Opacus' criterion sums, with the norms and coefficients of the records.

The criterion makes two backward passes. The first gives the norms n_i of the records' gradients; the second
differentiates sum c_i loss_i with c_i = min(1, C / (n_i + 1e-6)). At audited steps the recorder compares the gradients
after the second pass with those that the optimizer adds up. Replayed steps measure the sensitivity of the sum.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.fingerprints import Tally, TensorSnapshot
from dpspec_recording.sums.clipped_sums import HALVES, product_type
from dpspec_recording.sums.ghost_norms import unverified_norms
from dpspec_recording.watching.step_hooks import put_method

#: The largest number of layers that a recording names.
_MOST_LAYERS = 100


class GhostSums:
    """Observes the criterion's backward passes and the calls of ``accumulate`` of one optimizer.

    Attributes:
        norm_type: The half precision of norms, or "".
        sum_type: The half precision of sums, or "".
        batches: The number of batches.
        unobserved: The number of batches whose second pass was not observed.
        changed: The number of batches with other gradients than the second pass left.
    """

    def __init__(self, model: Any, optimizer: Any, audits: AuditedSteps) -> None:
        self._model, self._optimizer, self._audits = model, optimizer, audits
        self._losses: Tensor | None = None
        self._coefficients: Tensor | None = None
        self._norms: Tensor | None = None
        self._left, self._ended = TensorSnapshot(), False
        self.batches = self.unobserved = 0
        self.changed = Tally()
        self._unverified = dict.fromkeys(unverified_norms(model))
        self.norm_type, self.sum_type = "", ""

    @property
    def passes(self) -> "GhostSums":
        """The counts of both backward passes."""
        return self

    @property
    def unverified(self) -> list[str]:
        """The layers whose norms may be too small, now or when the recording began."""
        self._unverified |= dict.fromkeys(unverified_norms(self._model))
        return [*self._unverified][:_MOST_LAYERS]

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        """Observe the criterion's ``backward`` at its class, until ``undo`` ends it."""
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping as Losses

        original, watch = Losses.backward, self

        def backward(this: Any) -> Any:
            observed = this.optimizer is watch._optimizer
            if observed:
                guarded(lambda: watch._begin(this.loss_per_sample))
            result = original(this)
            if observed:
                guarded(watch._end)
            return result

        undo.callback(put_method(Losses, "backward", backward))

    def _begin(self, losses: Tensor) -> None:
        self._forget()
        if losses.dim() == 1 and losses.requires_grad:
            self._losses = losses

    def after_coefficients(self, coefficients: Tensor) -> None:
        """The first pass is over, and gave these coefficients (b,)."""
        losses, norms = self._losses, self._model.per_sample_gradient_norms.detach().clone()
        self._coefficients, self._norms = coefficients.detach(), norms
        if losses is None:
            return
        self.norm_type = HALVES.get(norms.dtype, self.norm_type)
        if self._audits.audited:  # under autocast the factors of the norms are rounded
            copies = (node for node in _nodes(losses) if node.name() == "ToCopyBackward0")
            cast = next((kind for node in copies if (kind := node._input_metadata[0].dtype) in HALVES), None)
            self.norm_type = self.norm_type if cast is None else HALVES[cast]

    def _end(self) -> None:
        if self._losses is None:
            return
        self._losses = None
        grads = [p.grad for p in self._optimizer.params]
        halves = [HALVES[grad.dtype] for grad in grads if grad is not None and grad.dtype in HALVES]
        self.sum_type = next(iter([*halves, product_type() or self.sum_type]))
        self._ended = self._coefficients is not None
        if self._audits.audited:
            self._left.keep(grads)

    @torch.no_grad()
    def before_accumulate(self) -> None:
        self.batches += 1
        if not self._ended:
            self.unobserved += 1
        elif self._left.exists:
            self.changed.add(self._left.differ(p.grad for p in self._optimizer.params))

    @torch.no_grad()
    def after_accumulate(self) -> tuple[int, Tensor | None] | None:
        """The number of records and their norms after clipping; None if both are unknown."""
        coefficients, norms, ended = self._coefficients, self._norms, self._ended
        self._forget()
        if coefficients is None or norms is None:
            return None
        return len(coefficients), (coefficients.double() * norms.double()) if ended else None

    def _forget(self) -> None:
        self._losses = self._coefficients = self._norms = None
        self._ended = False
        self._left.forget()


def _nodes(losses: Tensor) -> Iterator[Any]:
    """The nodes of the graph of the losses."""
    visited, waiting = set[Any](), [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]
