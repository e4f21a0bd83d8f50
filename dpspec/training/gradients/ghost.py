"""Per-example gradients of a chunk from one forward and one backward pass over all records.

Functions with a rule are intercepted wherever the model calls them. Parameters with any other use are copied per record
and left to autograd. A trial pass over one record decides this once. The model runs under ``vmap`` unless all its
layers are known to be independent across records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from dpspec.models.modules import max_pool2d
from dpspec.training.gradients.ghost_calls import (
    Call,
    Convolution,
    Embedding,
    Gradients,
    GroupNorm,
    LayerNorm,
    Linear,
    Rows,
)

#: Functions with a rule, as torch's modules call them.
RULES: dict[Any, type[Call]] = {
    nn.functional.linear: Linear,
    nn.functional.conv1d: Convolution,
    nn.functional.conv2d: Convolution,
    nn.functional.conv3d: Convolution,
    nn.functional.embedding: Embedding,
    nn.functional.group_norm: GroupNorm,
    nn.functional.layer_norm: LayerNorm,
}

#: Maps parameters by name and records (b, ...) to outputs (b, ...).
Forward: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]

_Receive: TypeAlias = Callable[[Mapping[str, Gradients]], None]


class PerExample:
    """Per-example gradients of a model, by the structure that a trial pass finds.

    Only functions with a rule use the parameters ``covered``. ``written`` counts the bytes of written-out gradients per
    record. ``together``: the structure treats records independently, so that no ``vmap`` is needed.
    """

    def __init__(
        self,
        forward: Forward,
        parameters: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        *,
        together: bool,
        constants: Iterable[Tensor] = (),
    ) -> None:
        """Run the trial pass over one record ``x`` (1, ...), ``y`` (1,). ``constants`` are not trained."""
        self._forward, self.together = forward, together
        self._constants = frozenset(map(id, constants))
        watched = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with torch.enable_grad():
            tape = _Tape(watched, self._constants, x.device)
            total, _ = self._total(tape, {}, watched, x, y)
            other_gradients = torch.autograd.grad(total, [tape.anchor, *watched.values()], allow_unused=True)[1:]
        otherwise = {name for name, gradient in zip(watched, other_gradients, strict=True) if gradient is not None}
        otherwise |= {name for call in tape.calls if not call.batched for name in call.trained}
        calls = [set(call.trained) for call in tape.calls]
        while more := {name for call in calls if call & otherwise for name in call} - otherwise:
            otherwise |= more  # a call is intercepted with all of its parameters or not at all
        self.covered = frozenset[str]().union(*calls) - otherwise
        factors = {name for name in self.covered if not isinstance(tape.found.get(name), Rows | None)}
        self.written = sum(p.nbytes for name, p in parameters.items() if name not in factors)

    def gradients(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Gradients], Tensor]:
        found, _, outputs = self._forward_backward(parameters, x, y, measured=False)
        return found, outputs

    def squares(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Squared norms (b,), float64, by parameter, and outputs. Gradients are freed during the backward pass."""
        found, squares, outputs = self._forward_backward(parameters, x, y, measured=True)
        return squares | {name: gradients.squares() for name, gradients in found.items()}, outputs

    def _forward_backward(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, *, measured: bool
    ) -> tuple[dict[str, Gradients], dict[str, Tensor], Tensor]:
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
        named: dict[str, Gradients] = {}
        for name, p in left.items():
            values = rows.get(name)  # None: the outputs do not depend on the parameter
            zeros = p.new_zeros(1).expand(len(x), *p.shape)
            named[name] = tape.found.get(name) or Rows(zeros if values is None else values)
        return named, tape.squares, outputs.detach()

    def _total(
        self, tape: "_Tape", copies: Mapping[str, Tensor], shared: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum of the records' losses, and outputs; ``copies`` (b, ...) are per-record parameters."""

        def one(copies: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            with tape:
                outputs = self._forward({**shared, **copies}, x[None])
            return nn.functional.cross_entropy(outputs, y[None]), outputs[0]

        if self.together and not copies:
            with tape:
                outputs = self._forward(shared, x)
            return nn.functional.cross_entropy(outputs, y, reduction="sum") + tape.anchor, outputs
        tape.lifted = True
        losses, outputs = vmap(one)(copies, x, y)
        return losses.sum() + tape.anchor, outputs


class _Tape(TorchFunctionMode):
    """Intercept calls of functions with a rule on any of ``parameters``, and receive their gradients.

    ``squares`` has squared norms by parameter, if ``measured`` and only one call uses it; ``found`` has the other
    gradients. Every call depends on the zero ``anchor``, so that the backward pass reaches every call. ``lifted``: the
    model runs under ``vmap``.
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
            call = rule(self._names, *args, **kwargs)
            if call.supported and all(t is None or id(t) in self._known for t in call.given):
                x = call.prepared(args[0] if args else kwargs["input"])
                self.calls.append(call)
                self._uses.update(call.trained)
                tap = _Lifted if self.lifted else _Tap
                return tap.apply(x, self.anchor, call, self._receive)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)

    def _receive(self, found: Mapping[str, Gradients]) -> None:
        for name, more in found.items():
            known = self.found.get(name)
            if self._measured and self._uses[name] == 1:
                self.squares[name] = more.squares()
            else:
                self.found[name] = more.settled() if known is None else Rows(known.rows() + more.rows())


class _Tap(torch.autograd.Function):
    """A call as a graph node: x (b, k, ...) to y (b, k, ...), or (b, ...) to (b, ...) unless ``lifted``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, call: Call, receive: _Receive, lifted: bool = False) -> Tensor:
        call.batched = True
        y = call.forward(x if lifted else x[:, None])
        ctx.save_for_backward(x)
        ctx.call, ctx.receive, ctx.lifted = call, receive, lifted
        # Not a view: autograd would forbid in-place changes by the model.
        plain: Tensor = torch.ops.aten._unsafe_view.default(y, (y if lifted else y[:, 0]).shape)
        return plain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Pass on the parameters' gradients, which must not keep the graph alive."""
        x = ctx.saved_tensors[0].detach()
        if not ctx.lifted:
            x, gradient = x[:, None], gradient[:, None]
        before, found = ctx.call.backward(x, gradient, ctx.needs_input_grad[0])
        ctx.receive(found)
        return before if before is None or ctx.lifted else before[:, 0], None, None, None, None


class _Lifted(torch.autograd.Function):
    """A call under ``vmap`` that processes all records in one operation."""

    @staticmethod
    def forward(x: Tensor, anchor: Tensor, call: Call, receive: _Receive) -> Tensor:
        """Used only if the input is the same for all records, which happens only in the trial pass."""
        return call.forward(x[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Mark the input as used. Its gradient's value is never read."""
        return torch.zeros_like(ctx.saved_tensors[0]) if ctx.needs_input_grad[0] else None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, ...], x: Tensor, anchor: Tensor, call: Call, receive: _Receive
    ) -> tuple[Tensor, int]:
        return _Tap.apply(x.movedim(in_dims[0], 0), anchor, call, receive, True), 0  # type: ignore[no-untyped-call]
