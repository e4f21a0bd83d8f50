"""Ghost clipping: whether a batch's gradient is the sum of its records' gradients, each times its clipping coefficient.

Opacus' criterion makes two backward passes. The first gives the norms n_i of the records' gradients; the second
differentiates sum c_i loss_i with c_i = min(1, C / (n_i + 1e-6)). At audited steps the recorder compares the gradients
that reach the losses in both passes with equal weights and with the coefficients, and the gradients after the second
pass with those that the optimizer adds up. At some batches it differentiates single losses on the graph of the
training, without Opacus, and compares their norms.

If FSDP2 shards the model, each backward pass gathers the parameters on all ranks, so the ranks recompute the same
batches, with the same number of passes, after each has written to the store that it takes part. The gradients of whole
parameters are projected on the common directions one parameter at a time: a rank never holds a whole gradient.
"""

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.recording.audited_steps import AuditedSteps
from dpspec.recording.fingerprints import Tally, TensorSnapshot
from dpspec.recording.folder.step_record import ROUNDING
from dpspec.recording.ranks.rank_watch import RankWatch
from dpspec.recording.ranks.shards import local
from dpspec.recording.recognized import inner_module, is_fsdp2
from dpspec.recording.sums.clipped_sums import HALVES, product_type
from dpspec.recording.watching.step_hooks import put_method

#: Batch n is recomputed with probability min(1, FIRST / n), and of its records at most RECORDS one by one: each takes
#: a backward pass.
FIRST, RECORDS = 2, 8

#: Relative difference of equal weights that float32 explains.
_SAME = 1e-5

#: The class of the gradient of an embedding.
_EMBEDDING: Any = type(nn.functional.embedding(torch.zeros(1).long(), torch.zeros(1, 1, requires_grad=True)).grad_fn)


class GhostSums:
    """Observes the criterion's backward passes and the calls of ``accumulate`` of one optimizer.

    norm_type, sum_type: The half precision of norms and of sums, or "".
    """

    def __init__(self, model: Any, optimizer: Any, audits: AuditedSteps) -> None:
        self._model, self._optimizer, self._audits = model, optimizer, audits
        numbers = {id(p): number for number, p in enumerate(optimizer.params)}
        kinds = (
            (module, type(module).__bases__[1] if is_fsdp2(module) else type(module))
            for module in inner_module(model).modules()
        )
        tables = [table for table, kind in kinds if kind is nn.Embedding and table.padding_idx is not None]
        # Opacus' norm of an embedding counts the padding, whose gradient is 0, so that records are clipped to less.
        counted = model.use_ghost_clipping or not model.force_functorch
        self._padded = [numbers[id(table.weight)] for table in tables if id(table.weight) in numbers and counted]
        self._parameters: dict[int, Tensor] = dict(enumerate(optimizer.params))
        self._of_padding = 0.0
        self._random = random.SystemRandom()
        self._losses: Tensor | None = None
        self._weights: list[Tensor] = []
        self._coefficients: Tensor | None = None
        self._norms: Tensor | None = None
        self._left, self._ended = TensorSnapshot(), False
        self._own = False
        self._calls = self._unobserved = self._records = self._wrong_norms = 0
        self._unweighted, self._changed = Tally(), Tally()
        self.norm_type, self.sum_type = "", ""

    @property
    def found(self) -> list[int]:
        """[batches, batches that no criterion summed, batches with a second pass without coefficients, with other
        gradients than it left, records whose gradient was computed, those with another norm]."""
        counts = (int(tally) for tally in (self._unweighted, self._changed))
        return [self._calls, self._unobserved, *counts, self._records, self._wrong_norms]

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
            tensor: Any = losses
            self._hook = tensor.register_hook(self._weighted)

    def _weighted(self, weights: Tensor) -> None:
        if not self._own:
            self._weights.append(weights.detach().clone())

    def after_coefficients(self, coefficients: Tensor) -> None:
        """The first pass is over, and gave these coefficients (b,)."""
        losses, norms = self._losses, self._model.per_sample_gradient_norms.detach().clone()
        coefficients = coefficients.detach()
        self._coefficients, self._norms = coefficients, norms
        if losses is None:
            return
        self.norm_type = HALVES.get(norms.dtype, self.norm_type)
        fits = coefficients.shape == norms.shape == losses.shape
        if self._audits.audited:
            self._compare_cleared()
        passes = self._passes(len(losses) if fits else None)
        if passes is not None:
            self._recompute(losses, coefficients, passes)

    def _compare_cleared(self) -> None:
        grads = [local(p.grad) for p in self._optimizer.params if p.grad is not None]
        # zero_grad precedes the second pass
        ends = [end.to(grads[0].device) for grad in grads if grad.numel() for end in grad.aminmax()]
        self._changed.add(bool(ends) and torch.stack(ends).any())

    def _passes(self, records: int | None) -> int | None:
        """The number of records of this batch, None if unknown, to recompute; None to recompute nothing."""
        if records is None or self._random.random() * (self._calls + 1) >= FIRST:
            return None
        return min(RECORDS, records)

    def _recompute(self, losses: Tensor, coefficients: Tensor, passes: int) -> None:
        assert self._norms is not None
        limit = float(self._optimizer.max_grad_norm)
        copies = (node for node in _nodes(losses) if node.name() == "ToCopyBackward0")
        cast = next((kind for node in copies if (kind := node._input_metadata[0].dtype) in HALVES), None)
        self.norm_type = self.norm_type if cast is None else HALVES[cast]  # as under autocast
        tolerance = (ROUNDING + 5.0 * torch.finfo(cast or self._norms.dtype).eps) * limit
        enabled, self._model.hooks_enabled, self._own = self._model.hooks_enabled, False, True
        try:
            with torch.enable_grad(), warnings.catch_warnings(), ExitStack() as undo:
                for hook in self._hooks(losses):
                    undo.callback(hook.remove)
                warnings.simplefilter("ignore")  # of torch about hooks, for each pass
                chosen = self._random.sample(range(len(losses)), min(passes, len(losses)))
                for record in chosen:
                    self._of_padding = 0.0
                    squares = self._squared_length(losses[record])
                    used, norm = float(coefficients[record]), math.sqrt(squares)
                    factor_error = abs(used - min(1.0, limit / (math.sqrt(squares + self._of_padding) + 1e-6)))
                    self._wrong_norms += not factor_error * norm <= tolerance
                for _ in range(passes - len(chosen)):  # of other ranks
                    self._squared_length(losses.sum())
                self._records += len(chosen)
        finally:
            self._own, self._model.hooks_enabled = False, enabled

    def _hooks(self, losses: Tensor) -> Iterator[Any]:
        """Observe the gradients of padding that the passes compute."""
        nodes: list[Any] = list(_nodes(losses)) if self._padded else []
        weights = {id(self._parameters.get(number)) for number in self._padded}
        tables = [node for node in nodes if type(node) is _EMBEDDING]
        padded_tables = [node for node in tables if id(getattr(node.next_functions[0][0], "variable", 0)) in weights]
        if len(padded_tables) < len(self._padded) and any(node.name().startswith("CompiledFunction") for node in nodes):
            raise RuntimeError("compiled code hides the gradient of padding: compile the model without its embeddings")
        for node in padded_tables:
            yield node.register_prehook(partial(self._pad, node._saved_indices == node._saved_padding_idx))

    def _pad(self, positions: Tensor, gradients: Sequence[Tensor | None]) -> None:
        """Add the squared length of the gradient of padding at these positions."""
        if (gradient := gradients[0]) is not None:
            self._of_padding += float(gradient[positions].sum(0).double().square().sum())

    def _squared_length(self, value: Tensor) -> float:
        """The squared length of the gradient of a value."""
        derivatives = torch.autograd.grad(value, self._optimizer.params, retain_graph=True, allow_unused=True)
        return sum(squared_length(derivative) for derivative in derivatives if derivative is not None)

    def _end(self) -> None:
        if self._losses is None:
            return
        self._hook.remove()
        coefficients, weights, self._losses = self._coefficients, self._weights, None
        if coefficients is None or len(weights) != 2:
            self._unweighted.add(True)
        elif self._audits.audited:
            first, used = (pass_weights.reshape(-1) for pass_weights in weights)
            equal = 1.0 / max(1, len(first)) if self._model.loss_reduction == "mean" else 1.0
            tolerance = max(_SAME, torch.finfo(first.dtype).eps)
            self._unweighted.add(((first - equal).abs() > tolerance * equal).any())
            self._unweighted.add(used.shape != coefficients.shape or (used != coefficients.to(used)).any())
        grads = [p.grad for p in self._optimizer.params]
        halves = [HALVES[grad.dtype] for grad in grads if grad is not None and grad.dtype in HALVES]
        self.sum_type = next(iter([*halves, product_type() or self.sum_type]))
        self._ended = True
        if self._audits.audited:
            self._left.keep(grads)

    @torch.no_grad()
    def before_accumulate(self) -> None:
        self._calls += 1
        if not self._ended:
            self._unobserved += 1
        elif self._left.exists:
            self._changed.add(self._left.differ(p.grad for p in self._optimizer.params))

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
        self._weights, self._ended = [], False
        self._left.forget()


#: Observes the gradient of a whole parameter, given the parameter's number.
Observer = Callable[[int, Tensor], None]


class WholeGradients:
    """The gradients of whole parameters that the backward passes of a rank compute, before FSDP2 sums and shards them.

    FSDP2 gathers the parameters of a module for its forward pass, and again for a backward pass; autograd
    differentiates by the gathered ones.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], rank: RankWatch) -> None:
        self._model, self._parameters, self._rank = model, list(parameters), rank
        self.gathered: dict[int, Tensor] = {}
        #: Called in each backward pass of the training, at the first parameter.
        self.passing: Callable[[], None] = lambda: None
        self._observer: Observer | None = None
        self._discarding = False

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

    def differentiate(self, value: Tensor, observer: Observer) -> None:
        """Give the gradients of a value to an observer, one parameter at a time, and keep none.

        The pass gathers parameters, so all ranks must make it at the same time.
        """
        before, self._observer, self._discarding = self._observer, observer, True
        try:
            torch.autograd.grad(value, list(self.gathered.values()), retain_graph=True, allow_unused=True)
        finally:
            self._observer, self._discarding = before, False

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

    def _differentiated(self, number: int, gradient: Tensor) -> Tensor | None:
        if self._observer is not None:
            self._observer(number, gradient.detach())
        if not self._discarding:
            self._guarded(partial(self._rank.gather, number, self.gathered[number]))
            if number == 0:
                self._guarded(self.passing)
        return gradient.new_zeros(()).expand_as(gradient) if self._discarding else None


class ShardedGhostSums(GhostSums):
    def __init__(self, model: Any, optimizer: Any, audits: AuditedSteps, rank: RankWatch) -> None:
        super().__init__(model, optimizer, audits)
        self._rank, self.whole = rank, WholeGradients(model, optimizer.params, rank)
        self._parameters = self.whole.gathered
        self._chosen = random.Random(int.from_bytes(rank.group.digest(b"batches"), "little"))
        self._batch, self._agreeing = 0, True
        self._folded: Tensor | None = None

    def attach(self, guarded: Callable[[Callable[[], None]], None], undo: ExitStack) -> None:
        super().attach(guarded, undo)
        self._guarded = guarded
        self.whole.attach(guarded, undo)

    def after_coefficients(self, coefficients: Tensor) -> None:
        super().after_coefficients(coefficients)
        self._folded = None
        self.whole.observe(lambda _, gradient: self._guarded(partial(self._fold, gradient)))

    def _fold(self, gradient: Tensor) -> None:
        self._folded = self._rank.sketch.fold([gradient.reshape(1, -1)], block=self._folded)

    def _passes(self, records: int | None) -> int | None:
        self._batch += 1
        if not self._agreeing or self._chosen.random() * self._batch >= FIRST:
            return None
        rank_records = self._rank.group.agree(f"batch {self._batch}", -1 if records is None else records)
        self._agreeing = rank_records is not None
        return None if rank_records is None or min(rank_records) < 0 else min(RECORDS, max(rank_records))

    def _squared_length(self, value: Tensor) -> float:
        lengths: list[float] = []
        self.whole.differentiate(value, lambda _, gradient: lengths.append(squared_length(gradient)))
        return sum(lengths)

    def _end(self) -> None:
        self.whole.observe(None)
        super()._end()
        block, self._folded = self._folded, None
        if block is not None:
            self._rank.add(self._rank.sketch.along(block)[0])


def squared_length(gradient: Tensor) -> float:
    return float(gradient.double().square().sum())


def _nodes(losses: Tensor) -> Iterator[Any]:
    """The nodes of the graph of the losses."""
    visited, waiting = set[Any](), [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]
