"""Ghost clipping: the batches whose gradient Opacus' criterion sums, with the norms and coefficients of the records.

The criterion makes two backward passes. The first gives the norms n_i of the records' gradients; the second
differentiates sum c_i loss_i with c_i = min(1, C / (n_i + 1e-6)). At audited steps the recorder compares the gradients
after the second pass with those that the optimizer adds up. Replayed steps measure the sensitivity of the sum.

If FSDP2 shards the model, the gradients of whole parameters are projected on the common directions one parameter at a
time: a rank never holds a whole gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.fingerprints import Tally, TensorSnapshot
from dpspec_recording.ranks.rank_watch import RankWatch
from dpspec_recording.shards import local
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


#: Observes the gradient of a whole parameter.
Observer = Callable[[Tensor], None]


class WholeGradients:
    """The gradients of whole parameters that the backward passes of a rank compute, before FSDP2 sums and shards them.

    FSDP2 gathers the parameters of a module for its forward pass, and again for a backward pass; autograd
    differentiates by the gathered ones.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tensor], rank: RankWatch, passing: Callable[[], None]
    ) -> None:
        """passing: called in each backward pass of the training, at the first parameter."""
        self._model, self._parameters, self._rank, self._passing = model, list(parameters), rank, passing
        self.gathered: dict[int, Tensor] = {}
        self._observer: Observer | None = None

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        self._guarded, self._undo = guarded, undo
        numbers = {id(p): number for number, p in enumerate(self._parameters)}
        for module in self._model.modules():  # frozen parameters have the numbers after the last one
            named_parameters = [(name, p) for name, p in module._parameters.items() if p is not None]
            parameter_numbers = {name: numbers.setdefault(id(p), len(numbers)) for name, p in named_parameters}
            if parameter_numbers:
                undo.callback(module.register_forward_pre_hook(partial(self._gather, parameter_numbers)).remove)

    def observe(self, observer: Observer | None) -> None:
        """Give the gradients of the training's passes to an observer from now on; None ends it."""
        self._observer = observer

    def _gather(self, parameter_numbers: dict[str, int], module: nn.Module, _: Any) -> None:
        for name, number in parameter_numbers.items():
            p: Any = module._parameters[name]
            if p is None or local(p) is not p:
                continue
            if p is not self.gathered.get(number) and p.requires_grad:
                self.gathered[number] = p
                self._undo.callback(p.register_hook(partial(self._differentiated, number)).remove)
            if torch.is_grad_enabled() and module.training:
                self._guarded(partial(self._compare, number, p))

    def _compare(self, number: int, gathered: Tensor) -> None:
        if number < len(self._parameters):
            rows, start = local(self._parameters[number]).detach(), self._rank.starts[number]
            same = gathered.detach().reshape(-1)[start : start + rows.numel()].view(rows.shape)
            snapshot = TensorSnapshot()
            snapshot.keep([rows])
            self._rank.other.add(snapshot.differ([same]))
        self._rank.gather(number, gathered)

    def _differentiated(self, number: int, gradient: Tensor) -> None:
        if self._observer is not None:
            self._observer(gradient.detach())
        self._guarded(partial(self._rank.gather, number, self.gathered[number]))
        if number == 0:
            self._guarded(self._passing)


class ShardedGhostSums(GhostSums):
    def __init__(
        self, model: Any, optimizer: Any, audits: AuditedSteps, rank: RankWatch, passing: Callable[[], None]
    ) -> None:
        """passing: called in each backward pass."""
        super().__init__(model, optimizer, audits)
        self._rank, self.whole = rank, WholeGradients(model, optimizer.params, rank, passing)
        self._folded: Tensor | None = None

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        super().attach(guarded, undo)
        self._guarded = guarded
        self.whole.attach(guarded, undo)

    def after_coefficients(self, coefficients: Tensor) -> None:
        super().after_coefficients(coefficients)
        self._folded = None
        self.whole.observe(lambda gradient: self._guarded(partial(self._fold, gradient)))

    def _fold(self, gradient: Tensor) -> None:
        self._folded = self._rank.sketch.fold([gradient.reshape(1, -1)], block=self._folded)

    def _end(self) -> None:
        self.whole.observe(None)
        super()._end()
        block, self._folded = self._folded, None
        if block is not None:
            self._rank.add(self._rank.sketch.along(block)[0])


def _nodes(losses: Tensor) -> Iterator[Any]:
    """The nodes of the graph of the losses."""
    visited, waiting = set[Any](), [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]
