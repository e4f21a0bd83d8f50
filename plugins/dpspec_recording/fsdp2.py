"""FSDP2: a model whose parameters are dealt by rows to the ranks, and Opacus' optimizer for it.

Only this file knows FSDP2. For others a rank holds rows of the parameters (:attr:`Header.shards`), whose noise and
whose part of a squared norm add up over the ranks. The mistakes that are its own:

    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))   # refused
    model.set_gradient_divide_factor(1.0)                                            # deviates: no mean of the ranks

FSDP2 gathers the rows of a parameter for each pass, so the passes of one step could use other rows than those that
get noise. :class:`WholeGradients` compares the gathered parameters with the rows of this rank. It projects gradients on
the common directions one parameter at a time: a rank never holds a whole gradient.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.fingerprints import TensorSnapshot
from dpspec_recording.ranks.rank_watch import RankWatch
from dpspec_recording.recognized import is_opacus, name_of
from dpspec_recording.shards import local
from dpspec_recording.sums.ghost_sums import GhostSums

#: Opacus' optimizer for a model that FSDP2 shards. It clips by ghost norms.
_OPTIMIZER = "FSDPOptimizerFastGradientClipping"

_ADVICE = "use FSDP2Wrapper of Opacus, without mp_policy, on a model in float32, over all processes"


def is_for_shards(optimizer: Any) -> bool:
    """Whether an optimizer is Opacus' for sharded parameters."""
    return is_opacus(optimizer, _OPTIMIZER)


def sharding_of(model: nn.Module, optimizer: Any) -> "Sharding | None":
    """How a model is sharded; None if it is whole in each process. Raises ``UsageError`` as :class:`Sharding`."""
    return Sharding(model, optimizer) if is_for_shards(optimizer) or any(map(_is_sharded, model.modules())) else None


class Sharding:
    """The rows of each parameter that this process holds, and how their sums are observed.

    Attributes:
        places: Of each parameter of the optimizer the place of the first coordinate of this process, and the number of
            all its coordinates.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """Raises ``UsageError`` unless the optimizer is Opacus' for shards, and ranks hold rows in their precision."""
        if not is_for_shards(optimizer):
            optimizer_name = "None" if optimizer is None else name_of(type(optimizer))
            raise UsageError(
                f"FSDP2 shards the model, and optimizer is {optimizer_name}: give make_private "
                "grad_sample_mode='ghost_fsdp', and dpspec.record its results"
            )
        refuse_precision(model)
        self._optimizer = optimizer
        self.places = tuple(shard_of(p) for p in optimizer.params)

    def divisor(self, rank: RankWatch) -> float:
        """What FSDP2 divides the sum by, and Opacus later the noise: the number of ranks for a mean, otherwise 1."""
        return float(rank.group.world) if self._optimizer.loss_reduction == "mean" else 1.0

    def ghost_sums(
        self, model: Any, audits: AuditedSteps, rank: RankWatch, passing: Callable[[], None]
    ) -> "ShardedGhostSums":
        """passing: called in each backward pass."""
        return ShardedGhostSums(model, self._optimizer, audits, rank, passing)


def _is_sharded(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def shard_of(p: Any) -> tuple[int, int]:
    """The place of the first coordinate of this process in a parameter, and the number of all its coordinates.

    ``UsageError`` unless the processes hold consecutive rows, each row once, in float32 or float64.
    """
    mesh, local_shard, rows = getattr(p, "device_mesh", None), local(p), len(p) if p.dim() else 0
    if mesh is None or not rows:
        raise UsageError(f"the optimizer is for sharded parameters, and one is whole: {_ADVICE}")
    rows_per_process = -(-rows // mesh.size())
    start = min(mesh.get_local_rank() * rows_per_process, rows) if mesh.ndim == 1 else 0
    fits = mesh.ndim == 1 and mesh.size() == torch.distributed.get_world_size()
    fits = fits and [type(placement).__name__ for placement in p.placements] == ["Shard"] and p.placements[0].dim == 0
    if (
        not fits
        or local_shard.shape != (min(rows_per_process, rows - start), *p.shape[1:])
        or local_shard.dtype not in (torch.float32, torch.float64)
    ):
        raise UsageError(f"a parameter is not sharded by rows over all processes: {_ADVICE}")
    return start * (p.numel() // rows), p.numel()


def refuse_precision(model: nn.Module) -> None:
    """Raise ``UsageError`` if FSDP2 gathers parameters or sums gradients in another precision than their own."""
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        policy = getattr(state(), "_mp_policy", None) if callable(state) else None
        kinds = {getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype", "output_dtype")}
        if kinds - {None, torch.float32}:
            raise UsageError(
                f"the model has a mixed precision policy, whose rounding the recorder cannot bound: {_ADVICE}"
            )


#: Observes the gradient of a whole parameter.
Observer = Callable[[Tensor], None]


class WholeGradients:
    """The gradients of whole parameters that the backward passes of a rank compute, before FSDP2 sums and shards them.

    Parameters are gathered for the forward pass of a module, and again for a backward pass; autograd differentiates by
    the gathered ones.
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
