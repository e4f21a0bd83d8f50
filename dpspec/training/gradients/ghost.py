"""A chunk's per-example gradients from one forward and one backward pass over all of its records.

Functions with a rule are caught on the way, wherever in the model they are called, and replaced by a
:class:`~dpspec.training.gradients.ghost_calls.Call`, which works out the gradients of its parameters from its input
and the gradient of its output. Parameters that are used in any other way get a copy per record, and autograd does the
rest. Which is which is found once, by a trial pass over one record.

The model runs under ``vmap``: whatever it does, no record can change what another one computes. Only a model of layers
that are known to work record by record runs without, which is faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from dpspec.models.pooling import max_pool2d
from dpspec.training.gradients.ghost_calls import Call, Convolution, Embedding, GroupNorm, LayerNorm, Linear
from dpspec.training.gradients.ghost_parameters import Gradients, Rows


class Rule(Protocol):
    """Reads the arguments of a function as a call; None where it is used in a way without a rule."""

    def __call__(self, name_of: Mapping[int, str], *args: Any, **kwargs: Any) -> tuple[Tensor, Call] | None:
        """name_of: the trained parameters' names by the id of their tensors. Returns the input and the call."""


def _linear(
    name_of: Mapping[int, str], input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Call] | None:
    return (input, Linear(weight, bias, _names(name_of, weight, bias))) if weight.ndim == 2 else None


def _convolution(spatial: int) -> Rule:
    def rule(
        name_of: Mapping[int, str],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> tuple[Tensor, Call] | None:
        if isinstance(padding, str) or input.ndim != spatial + 2:
            return None
        steps, sides, gaps = (_each(size, spatial) for size in (stride, padding, dilation))
        return input, Convolution(weight, bias, _names(name_of, weight, bias), steps, sides, gaps, groups)

    return rule


def _embedding(
    name_of: Mapping[int, str],
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> tuple[Tensor, Call] | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    return input, Embedding(weight, name_of.get(id(weight)), padding_idx)


def _group_norm(
    name_of: Mapping[int, str],
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Call] | None:
    return input, GroupNorm(weight, bias, _names(name_of, weight, bias), num_groups, eps)


def _layer_norm(
    name_of: Mapping[int, str],
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Call] | None:
    return input, LayerNorm(weight, bias, _names(name_of, weight, bias), tuple(normalized_shape), eps)


def _names(name_of: Mapping[int, str], weight: Tensor | None, bias: Tensor | None) -> tuple[str | None, str | None]:
    return name_of.get(id(weight)), name_of.get(id(bias))


def _each(size: Any, spatial: int) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes * spatial if len(sizes) == 1 else sizes


#: The functions with a rule, as torch's own modules call them.
RULES: dict[Any, Rule] = {
    nn.functional.linear: _linear,
    nn.functional.conv1d: _convolution(1),
    nn.functional.conv2d: _convolution(2),
    nn.functional.conv3d: _convolution(3),
    nn.functional.embedding: _embedding,
    nn.functional.group_norm: _group_norm,
    nn.functional.layer_norm: _layer_norm,
}


#: The outputs (b, ...) of a model with parameters by name on records (b, ...).
Forward: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]

#: The mean loss of a batch: outputs (b, classes) and labels (b,) to a scalar. Called with b = 1.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_Receive: TypeAlias = Callable[[Mapping[str, Gradients]], None]


class PerExample:
    """Per-example gradients of a model whose structure a trial pass shows.

    together: whether the model works record by record by its structure, so that it needs no ``vmap``.
    covered: the parameters that only functions with a rule use.
    written: the bytes of gradients that are written out for one record.
    """

    def __init__(
        self,
        forward: Forward,
        loss: Loss,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        *,
        together: bool,
        constants: Iterable[Tensor] = (),
    ) -> None:
        """``x`` (1, ...), ``y`` (1,): the record to try; ``constants``: the model's tensors that are not trained."""
        self._forward, self._loss, self.together = forward, loss, together
        self._constants = frozenset(map(id, constants))
        watched = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with torch.enable_grad():
            tape = _Tape(watched, self._constants, x.device)
            total, _ = self._total(tape, {}, watched, x, y)
            elsewhere = torch.autograd.grad(total, [tape.anchor, *watched.values()], allow_unused=True)[1:]
        otherwise = {name for name, gradient in zip(watched, elsewhere, strict=True) if gradient is not None}
        otherwise |= {name for call in tape.calls if not call.batched for name in call.trained}
        calls = [set(call.trained) for call in tape.calls]
        while more := {name for call in calls if call & otherwise for name in call} - otherwise:
            otherwise |= more  # a call is caught with all of its parameters or not at all
        self.covered = frozenset[str]().union(*calls) - otherwise
        factors = {name for name in self.covered if not isinstance(tape.found.get(name), Rows | None)}
        self.written = sum(p.nbytes for name, p in parameters.items() if name not in factors)

    def gradients(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Gradients], Tensor]:
        """The gradients of records ``x`` (b, ...), ``y`` (b,), b >= 1, by parameter, and their outputs (b, classes)."""
        found, _, outputs = self._both_ways(parameters, x, y, measured=False)
        return found, outputs

    def squares(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Their squared norms (b,) in float64 by parameter, and the outputs.

        Gradients are let go on the way back, as soon as they are measured.
        """
        found, squares, outputs = self._both_ways(parameters, x, y, measured=True)
        return squares | {name: gradients.squares() for name, gradients in found.items()}, outputs

    def _both_ways(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, *, measured: bool
    ) -> tuple[dict[str, Gradients], dict[str, Tensor], Tensor]:
        """Forwards and backwards: gradients, squared norms of those that were ``measured`` instead, and the outputs."""
        covered = {name: p for name, p in parameters.items() if name in self.covered}
        copies = {
            name: p.detach().expand(len(x), *p.shape).requires_grad_()
            for name, p in parameters.items()
            if name not in self.covered
        }
        with torch.enable_grad():
            tape = _Tape(covered, self._constants, x.device, measured=measured)
            total, outputs = self._total(tape, copies, covered, x, y)
            found = torch.autograd.grad(total, [tape.anchor, *copies.values()], allow_unused=True)[1:]
        rows = dict(zip(copies, found, strict=True))
        left = {name: p for name, p in parameters.items() if name not in tape.squares}
        named = {name: tape.found.get(name) or _rows(rows.get(name), p, len(x)) for name, p in left.items()}
        return named, tape.squares, outputs.detach()

    def _total(
        self, tape: _Tape, copies: Mapping[str, Tensor], shared: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum of the records' losses, and the outputs; ``copies`` (b, ...) are parameters for each record."""

        def one(copies: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            with tape:
                outputs = self._forward({**shared, **copies}, x[None])
            return self._loss(outputs, y[None]), outputs[0]

        if self.together and not copies:
            with tape:
                outputs = self._forward(shared, x)
            if self._loss is nn.functional.cross_entropy:
                return nn.functional.cross_entropy(outputs, y, reduction="sum") + tape.anchor, outputs
            losses = vmap(self._loss)(outputs[:, None], y[:, None])
        else:
            tape.lifted = True
            losses, outputs = vmap(one)(copies, x, y)
        return losses.sum() + tape.anchor, outputs


def _rows(found: Tensor | None, parameter: Tensor, records: int) -> Rows:
    """What autograd found; nothing where the outputs do not depend on the parameter."""
    return Rows(parameter.new_zeros(1).expand(records, *parameter.shape) if found is None else found)


class _Tape(TorchFunctionMode):
    """Catches the calls of functions with a rule that are given one of ``parameters``, and what they hand over.

    lifted: whether the model runs under ``vmap``.
    calls: those caught, in order.
    found: gradients by parameter, once the backward pass is through.
    squares: squared norms instead, by parameter; where they are to be ``measured`` and one call alone uses it.
    anchor: a zero that every call depends on, so that the backward pass reaches all of them and no parameter.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        constants: frozenset[int],
        device: torch.device,
        *,
        measured: bool = False,
    ) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in parameters.items()}
        self._known = constants.union(self._names)
        self.lifted = False
        self.calls: list[Call] = []
        self.found: dict[str, Gradients] = {}
        self.squares: dict[str, Tensor] = {}
        self._measured = measured
        self._uses = Counter[str]()
        self.anchor = torch.zeros((), device=device, requires_grad=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.max_pool2d and not self.lifted:
            return max_pool2d(*args, **kwargs)
        rule = RULES.get(func)
        if rule is not None and any(id(arg) in self._names for arg in (*args, *kwargs.values())):
            caught = rule(self._names, *args, **kwargs)
            if caught is not None and all(t is None or id(t) in self._known for t in caught[1].given):
                x, call = caught
                self.calls.append(call)
                self._uses.update(call.trained)
                tap = _Lifted if self.lifted else _Tap
                return tap.apply(x, self.anchor, call, self._receive)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)

    def _receive(self, found: Mapping[str, Gradients]) -> None:
        """Keep gradients, or measure them; those of a parameter that is used more than once add up."""
        for name, more in found.items():
            known = self.found.get(name)
            if self._measured and self._uses[name] == 1:
                self.squares[name] = more.squares()
            else:
                self.found[name] = more.settled() if known is None else Rows(known.rows() + more.rows())


class _Tap(torch.autograd.Function):
    """A call in the graph: x (b, k, ...) to y (b, k, ...), or (b, ...) to (b, ...) where it is not ``lifted``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, call: Call, receive: _Receive, lifted: bool = False) -> Tensor:
        """The output of the call."""
        call.batched = True
        y, ctx.kept = call.forward(x if lifted else x[:, None])
        ctx.save_for_backward(x)
        ctx.call, ctx.receive, ctx.lifted = call, receive, lifted
        # Not as a view, which autograd would not let the model change in place.
        plain: Tensor = torch.ops.aten._unsafe_view.default(y, (y if lifted else y[:, 0]).shape)
        return plain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Hands over the parameters' gradients, which must not keep the graph alive."""
        x = ctx.saved_tensors[0].detach()
        if not ctx.lifted:
            x, gradient = x[:, None], gradient[:, None]
        before, found = ctx.call.backward(x, ctx.kept, gradient, ctx.needs_input_grad[0])
        ctx.receive(found)
        return before if before is None or ctx.lifted else before[:, 0], None, None, None, None


class _Lifted(torch.autograd.Function):
    """A call under ``vmap``: it steps out, to work on all records at once."""

    @staticmethod
    def forward(x: Tensor, anchor: Tensor, call: Call, receive: _Receive) -> Tensor:
        """Only where the input is the same for all records, which no call is caught for but in the trial pass."""
        return call.forward(x[None])[0][0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the input."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Tells what made the input that it is used; how much is never asked."""
        return torch.zeros_like(ctx.saved_tensors[0]) if ctx.needs_input_grad[0] else None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, ...], x: Tensor, anchor: Tensor, call: Call, receive: _Receive
    ) -> tuple[Tensor, int]:
        """Records first."""
        return _Tap.apply(x.movedim(in_dims[0], 0), anchor, call, receive, True), 0  # type: ignore[no-untyped-call]
