"""Clippers, per-example gradients, their norms (float64) and their clipped sums, in chunks that fit into memory.

One forward and one backward pass over all records of a chunk. Functions with a rule are intercepted wherever the model
calls them. Parameters with any other use are copied per record and left to autograd. A trial pass over one record
decides this once. The model runs under ``vmap`` unless all its layers are known to be independent across records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from dpspec.contract.phase import Phase
from dpspec.contract.providers import RecordLoss, TrainingJob
from dpspec.models.modules import FastPooling, max_pool2d
from dpspec.training.device import full_precision
from dpspec.training.gradients import flat_model, ghost_calls, memory
from dpspec.training.gradients.flat_model import call, record_by_record, require_uncoupled
from dpspec.training.gradients.ghost_calls import Call, Gradients, Rows, squares_of
from dpspec.training.losses import cross_entropy

#: Functions with a rule, as torch's modules call them.
RULES: dict[Any, type[Call]] = {
    nn.functional.linear: ghost_calls.Linear,
    nn.functional.conv1d: ghost_calls.Convolution,
    nn.functional.conv2d: ghost_calls.Convolution,
    nn.functional.conv3d: ghost_calls.Convolution,
    nn.functional.embedding: ghost_calls.Embedding,
    nn.functional.group_norm: ghost_calls.GroupNorm,
    nn.functional.layer_norm: ghost_calls.LayerNorm,
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
        loss: RecordLoss,
        together: bool,
        constants: Iterable[Tensor] = (),
    ) -> None:
        """Run the trial pass over one record ``x`` (1, ...), ``y`` (1,). ``constants`` are not trained."""
        self._forward, self._loss, self.together = forward, loss, together
        self._constants = frozenset(map(id, constants))
        watched = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with torch.enable_grad():
            tape = _Tape(watched, self._constants, x.device)
            total, _ = self._total(tape, {}, watched, x, y)
            other_gradients = torch.autograd.grad(total, [tape.anchor, *watched.values()], allow_unused=True)[1:]
        otherwise = {name for name, gradient in zip(watched, other_gradients, strict=True) if gradient is not None}
        otherwise |= {name for call in tape.calls if not call.batched for name in call.trained}
        calls = [set(call.trained) for call in tape.calls]
        while dependent := {name for call in calls if call & otherwise for name in call} - otherwise:
            otherwise |= dependent  # a call is intercepted with all of its parameters or not at all
        self.covered = frozenset[str]().union(*calls) - otherwise
        factors = {name for name in self.covered if not isinstance(tape.found.get(name), Rows | None)}
        self.written = sum(p.nbytes for name, p in parameters.items() if name not in factors)

    def gradients(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Gradients], Tensor]:
        gradients, _, outputs = self._forward_backward(parameters, x, y, measured=False)
        return gradients, outputs

    def squares(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Squared norms (b,), float64, by parameter, and outputs. Gradients are freed during the backward pass."""
        by_parameter, squares, outputs = self._forward_backward(parameters, x, y, measured=True)
        return squares | {name: gradients.squares() for name, gradients in by_parameter.items()}, outputs

    def _forward_backward(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, *, measured: bool
    ) -> tuple[dict[str, Gradients], dict[str, Tensor], Tensor]:
        covered = {name: p for name, p in parameters.items() if name in self.covered}
        written = ((name, p) for name, p in parameters.items() if name not in self.covered)
        copies = {name: p.detach().expand(len(x), *p.shape).requires_grad_() for name, p in written}
        with torch.enable_grad():
            tape = _Tape(covered, self._constants, x.device, measured=measured)
            total, outputs = self._total(tape, copies, covered, x, y)
            copy_gradients = torch.autograd.grad(total, [tape.anchor, *copies.values()], allow_unused=True)[1:]
        rows = dict(zip(copies, copy_gradients, strict=True))
        named: dict[str, Gradients] = {}
        for name, p in parameters.items():
            if name in tape.squares:
                continue
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
            return self._loss(outputs, y[None])[0], outputs[0]

        if self.together and not copies:
            with tape:
                outputs = self._forward(shared, x)
            return self._loss(outputs, y).sum() + tape.anchor, outputs
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
        self, parameters: Mapping[str, Tensor], constants: frozenset[int], device: torch.device, measured: bool = False
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

    def _receive(self, call_gradients: Mapping[str, Gradients]) -> None:
        for name, received in call_gradients.items():
            earlier = self.found.get(name)
            if self._measured and self._uses[name] == 1:
                self.squares[name] = received.squares()
            else:
                self.found[name] = received.settled() if earlier is None else Rows(earlier.rows() + received.rows())


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
        before, parameter_gradients = ctx.call.backward(x, gradient, ctx.needs_input_grad[0])
        ctx.receive(parameter_gradients)
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


#: Factor below 1 that survives rounding to float32.
_BELOW = 1.0 - 2.0**-22


@dataclass(frozen=True)
class Clipper:
    """g * min(1, clip_norm / ||g||), then every coordinate truncated to +- ``coordinate_bound``, unless it is infinite.

    Algorithm 2 of Xiao, Wan and Devadas. Truncation only shortens, so the l2 norm stays within ``clip_norm``.

    ``per_layer`` instead scales each of L tensors to at most clip_norm / sqrt(L) (McMahan et al. 2018, section 2.3):
    the norm of the whole is at most sqrt(L clip_norm^2 / L) = clip_norm.
    """

    clip_norm: float
    coordinate_bound: float = inf
    per_layer: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.clip_norm < inf:
            raise ValueError(f"clip_norm must be finite and above 0, got {self.clip_norm}")
        if not self.coordinate_bound > 0.0:
            raise ValueError(f"coordinate_bound must be above 0, got {self.coordinate_bound}")

    @property
    def is_flat(self) -> bool:
        return self.coordinate_bound == inf and not self.per_layer

    def scale(self, squares: Tensor, clip_norms: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute factors from the squared norms (k, b), float64, of k parameters' gradients for b records.

        ``clip_norms`` (b,), float64, replaces the clip norm of flat clipping.

        Returns factors (b,), float32, or (k, b) per layer, and norms (b,), float64, of the scaled gradients. Norms are
        zero for a record with a non-finite gradient, and so are its factors, per layer in that layer only.
        """
        if self.per_layer:
            layer_norms = squares.sqrt()
            factors = clip_factors(layer_norms, self.clip_norm / sqrt(len(squares)))
            scaled = torch.linalg.vector_norm(layer_norms * factors, dim=0)
            return factors, torch.where(squares.isfinite().all(0), scaled, 0.0)
        norms = squares.sum(0).sqrt()
        factors = clip_factors(norms, self.clip_norm if clip_norms is None else clip_norms)
        scaled = torch.where(norms.isfinite(), norms * factors, 0.0)
        # Before truncation slightly smaller, so that float32 rounding of products cannot exceed the norm.
        return factors if self.coordinate_bound == inf else factors * _BELOW, scaled

    def rows(self, layout: flat_model.Layout, rows: Tensor) -> Tensor:
        """The clipped gradients (b, P) of written-out gradients; zero if not finite."""
        pieces = [piece.flatten(1) for piece in layout.split(rows).values()] if self.per_layer else [rows]
        squares = torch.stack([squares_of(piece) for piece in pieces])
        factors = self.scale(squares)[0].expand(len(squares), -1)
        scaled = [piece * factor.unsqueeze(1) for piece, factor in zip(pieces, factors, strict=True)]
        clipped = torch.cat(scaled, dim=1).clamp(-self.coordinate_bound, self.coordinate_bound)
        return torch.where(squares.isfinite().all(0).unsqueeze(1), clipped, 0.0)


#: A clipper, or a clip norm for flat clipping.
Clip: TypeAlias = float | Clipper


def clipper(clip: Clip) -> Clipper:
    return clip if isinstance(clip, Clipper) else Clipper(float(clip))


def clipper_of(phase: Mapping[str, Any]) -> Clipper:
    """Build the clipper of a phase from its ``clip_norm`` and ``clipping`` block (default: flat)."""
    clip_norm = Phase.of(phase).clip_norm
    clipping = phase.get("clipping") or {"scheme": "flat"}
    match clipping.get("scheme"):
        case "flat" | "adaptive":  # adaptive: the clip norm of the first step
            return Clipper(clip_norm)
        case "truncated":
            return Clipper(clip_norm, float(clipping["coordinate_bound"]))
        case "per-layer":
            return Clipper(clip_norm, per_layer=True)
    raise ValueError(f"clipping scheme must be flat, truncated, per-layer or adaptive, got {clipping.get('scheme')!r}")


def clip_factors(norms: Tensor, bound: float | Tensor) -> Tensor:
    """min(1, bound / norm) for float64 norms, rounded down to float32; 0 if a norm is not finite.

    Rounding down ensures norm * factor <= bound in float64.
    """
    exact = bound / torch.clamp(norms, min=bound)
    factors = exact.float()
    above = (factors > exact) | (norms * factors > bound)
    factors = torch.where(above, torch.nextafter(factors, torch.zeros_like(factors)), factors)
    return torch.where(norms.isfinite(), factors, 0.0)


def no_norms(device: torch.device) -> Tensor:
    return torch.zeros(0, dtype=torch.float64, device=device)


def add_clipped(totals: Mapping[str, Tensor], gradients: Mapping[str, Tensor | Gradients], clip: Clip) -> Tensor:
    """Add clipped gradients to ``totals`` in place.

    A gradient within the bound is added unchanged. A non-finite gradient counts as zero, so no record contributes more
    than the clip norm. Tensors are rows (b, ...). Returns the norms (b,), float64, of the added contributions.
    """
    how, names, items = clipper(clip), tuple(totals), gradients.items()
    by_name = {name: Rows(g) if isinstance(g, Tensor) else g for name, g in items if name in totals}
    squares = torch.stack([by_name[name].squares() for name in names])
    factors, norms = how.scale(squares)
    finite = squares.isfinite().all(0)
    whole = bool(finite.all())
    if not whole:
        factors = factors[..., finite]
        by_name = {name: Rows(g.rows()[finite]) for name, g in by_name.items()}
    if how.coordinate_bound < inf:
        added_squares, bound = [], how.coordinate_bound * _BELOW
        for name in names:
            rows = by_name[name].rows().reshape(len(factors), totals[name].numel())
            added = (rows * factors[:, None]).clamp_(-bound, bound)
            added_squares.append(squares_of(added))
            totals[name].view(-1).add_(added.sum(0))
        shortened = torch.stack(added_squares).sum(0).sqrt()
        if whole:
            return shortened
        norms[finite] = shortened
        return norms
    for name, factors_of_name in zip(names, factors.expand(len(names), -1), strict=True):
        by_name[name].add(totals[name], factors_of_name)
    return norms


#: Tensors by parameter name.
Named: TypeAlias = Mapping[str, Tensor]

#: Result of a pass per chunk besides outputs: written-out gradients, gradients to sum, or squared norms.
Wanted: TypeAlias = Literal["rows", "sums", "norms"]

#: Maximum number of large records per chunk for norms; sums use half of it.
_MEASURED = 64

T = TypeVar("T")


@dataclass(frozen=True)
class ClippedSum:
    """Sum (P,) of the clipped gradients of a batch, and the norms (b,), float64, of the contributions."""

    sum: Tensor
    norms: Tensor


class FlatModel:
    """A module as a function of one flat vector of parameters. The module itself is never changed or moved."""

    def __init__(self, model: nn.Module, *, device: str | torch.device = "cpu", loss: RecordLoss | None = None) -> None:
        require_uncoupled(model)
        self.loss = cross_entropy if loss is None else loss
        self.layout = flat_model.Layout.of(model)
        self.size = self.layout.size
        self.device = torch.device(device)
        self._model = model
        self._examples: PerExample | None = None
        self._sizes: dict[Wanted, int] = {}
        self._most: int | None = None
        self._trained = flat_model.trained(model)
        constants = ((name, t) for name, t in flat_model.places(model).items() if name not in self._trained)
        self._constants = {name: t.detach().to(self.device) for name, t in constants}

    @classmethod
    def of(cls, job: TrainingJob) -> "FlatModel":
        """The model, device and loss of a job."""
        return cls(job.model, device=job.device, loss=job.loss)

    def initial(self) -> Tensor:
        return flat_model.flatten(self._model).to(self.device)

    def logits(self, state: Tensor, x: Tensor) -> Tensor:
        plain = record_by_record(self._model)  # then no torch.func transforms
        with full_precision(self.device), FastPooling() if plain else nullcontext():
            return self.forward(self.layout.unflatten(state), x)

    def gradients(self, state: Tensor, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        if len(x):
            size = self._size(state, x, y, "rows")
            for some_x, some_y in zip(torch.split(x, size), torch.split(y, size), strict=True):
                yield self.rows(state, some_x, some_y)

    def rows(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        def work(chunks: Iterator[tuple[Mapping[str, Gradients], Tensor]]) -> Tensor:
            named = ({name: gradients.rows() for name, gradients in chunk.items()} for chunk, _ in chunks)
            return torch.cat([state.new_zeros(0, self.size), *(self.layout.flatten(rows, leading=1) for rows in named)])

        return self._each(state, x, y, work, "rows")

    def look(self, state: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Norms (b,), float64, of the gradients at ``state`` before clipping, and predicted classes (b,)."""

        def work(chunks: Iterator[tuple[Named, Tensor]]) -> tuple[Tensor, Tensor]:
            norms = [no_norms(self.device)]
            classes = [torch.zeros(0, dtype=torch.int64, device=self.device)]
            for squares, outputs in chunks:
                norms.append(torch.stack(list(squares.values())).sum(0).sqrt())
                classes.append(outputs.argmax(dim=1))
            return torch.cat(norms), torch.cat(classes)

        return self._each(state, x, y, work, "norms")

    def clipped_sum(self, state: Tensor, x: Tensor, y: Tensor, clip: Clip) -> ClippedSum:
        """Sum (P,) of the records' clipped gradients at ``state``, and the clipped norms; zeros for an empty batch."""

        def work(chunks: Iterator[tuple[Mapping[str, Gradients], Tensor]]) -> ClippedSum:
            total = torch.zeros_like(state)
            pieces = self.layout.unflatten(total)
            norms = [no_norms(self.device), *(add_clipped(pieces, chunk, clip) for chunk, _ in chunks)]
            return ClippedSum(total, torch.cat(norms))

        return self._each(state, x, y, work, "sums" if clipper(clip).is_flat else "rows")

    def _each(self, state: Tensor, x: Tensor, y: Tensor, work: Callable[[Iterator[Any]], T], quantity: Wanted) -> T:
        if len(x) == 0:
            return work(iter(()))
        parameters = self.layout.unflatten(state.detach())

        def chunks(size: int) -> Iterator[Any]:
            for some_x, some_y in zip(torch.split(x, size), torch.split(y, size), strict=True):
                examples = self._tried(parameters, x, y)
                compute = examples.squares if quantity == "norms" else examples.gradients
                yield compute(parameters, some_x, some_y)

        with full_precision(self.device):
            size = self._size(state, x, y, quantity)
            result, self._most = memory.halving(lambda size: work(chunks(size)), size, self._most)
        return result

    def _size(self, state: Tensor, x: Tensor, y: Tensor, quantity: Wanted) -> int:
        if quantity not in self._sizes:
            examples = self._tried(self.layout.unflatten(state.detach()), x, y)
            with torch.no_grad():
                activations = memory.activation_bytes(self._model, x[:1].to(next(self._model.parameters()).device))
            needed = activations + (2 * state.nbytes if quantity == "rows" else examples.written)
            large = _MEASURED if quantity == "norms" else memory.RECORDS
            self._sizes[quantity] = memory.chunk_size(needed, self.device, large)
        return self._sizes[quantity]

    def _tried(self, parameters: Named, x: Tensor, y: Tensor) -> PerExample:
        """Structure of the model, from a trial pass over the first record; repeated if hooks change."""
        together = record_by_record(self._model)
        if self._examples is None or self._examples.together != together:
            # glibc keeps freed memory of up to twice the size of the largest freed block for reuse.
            torch.empty(31 * 2**20, dtype=torch.uint8)
            with flat_model.naming_layers(self._model):
                trial, constants = (self.forward, parameters, x[:1], y[:1]), self._constants.values()
                self._examples = PerExample(*trial, loss=self.loss, together=together, constants=constants)
        return self._examples

    def forward(self, parameters: Named, x: Tensor) -> Tensor:
        """Outputs for records ``x`` (b, ...) with trainable ``parameters`` by name."""
        trained = {qualified: parameters[name] for qualified, name in self._trained.items()}
        return call(self._model, {**self._constants, **trained}, x)


def per_example_gradients(model: nn.Module | FlatModel, x: Tensor, y: Tensor, *, state: Tensor | None = None) -> Tensor:
    """Gradient of each record's loss as rows (b, P), at ``state`` (P,) or the model's own parameters."""
    functional = model if isinstance(model, FlatModel) else FlatModel(model, device=x.device)
    return functional.rows(functional.initial() if state is None else state, x, y)
