"""Clipped gradient sums of R models of the same kind in one batch, each over its own records.

With a dense layer's input a and the gradient d of its output, the weight gradient d a^T has the norm |d| |a|, and a
weighted sum over records is one matrix product per model. Other gradients are written out per record.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from dpspec.contract.providers import RecordLoss
from dpspec.training.device import full_precision
from dpspec.training.gradients import memory
from dpspec.training.gradients.ghost_calls import squares_of
from dpspec.training.gradients.persample import Clipper, FlatModel, Named, add_clipped


@dataclass(frozen=True)
class _Dense:
    weight: str
    bias: str | None
    width: int


class StackedModel:
    """A module as a function of R flat parameter vectors. The module itself is never changed."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor, loss: RecordLoss | None = None) -> None:
        self._model = FlatModel(module, device=x.device, loss=loss)
        self.layout, self._module, self._device = self._model.layout, module, x.device
        self._dense = self._find_dense(x[0], y[0]) if len(x) else ()
        covered = {name for layer in self._dense for name in (layer.weight, layer.bias)}
        self._others = [name for name in self.layout.names if name not in covered]
        gradients = grad(self._tapped_loss, argnums=(0, 1), has_aux=True)
        self._gradients = vmap(vmap(gradients, in_dims=(0, None, None, 0, 0)), in_dims=(0, 0, 0, 0, 0))
        with torch.no_grad():
            example = x[:1].to(next(module.parameters()).device)
            self._kept = memory.activation_bytes(module, example) if len(x) else 0

    def chunk(self, how: Clipper) -> int:
        written = self._others if how.is_flat else self.layout.names
        sizes = dict(zip(self.layout.names, self.layout.sizes, strict=True))
        return memory.chunk_size(2 * 4 * sum(sizes[name] for name in written) + 4 * self._kept, self._device)

    def add_clipped(
        self,
        sums: Tensor,
        states: Tensor,
        x: Tensor,
        y: Tensor,
        inside: Tensor,
        how: Clipper,
        clip_norms: Tensor | None = None,
    ) -> Tensor:
        """Add clipped gradients of ``x`` (R, c, ...), ``y`` (R, c) at ``states`` (R, P) to ``sums`` (R, P) in place.

        Non-finite gradients count as zero, as do records outside of the mask ``inside`` (R, c). ``clip_norms`` (R,),
        float64, replaces the clip norm of flat clipping for each model. Returns the norms (R, c), float64, of the
        added contributions.
        """
        names, totals = self.layout.names, self.layout.split(sums)
        with full_precision(self._device):
            outputs, written, inputs = self._factors(states, x, y)
            if not how.is_flat:
                return self._add_written(totals, outputs, written, inputs, inside, how)
            by_name = self._squares(inputs, outputs, written)
            squares = torch.stack([by_name[name].flatten() for name in names])
            of_records = None if clip_norms is None else clip_norms.unsqueeze(1).expand(inside.shape).flatten()
            factors, norms = how.scale(squares, of_records)
            finite = squares.isfinite().all(0).view(inside.shape)
            counted = inside & finite
            if not bool(finite.all()):
                inputs, outputs, written = (
                    {name: _where(finite, t) for name, t in tensors.items()} for tensors in (inputs, outputs, written)
                )
            weights = torch.where(counted, factors.view(inside.shape), 0.0)
            for name in self._others:
                totals[name].flatten(1).add_(torch.bmm(weights.unsqueeze(1), written[name].flatten(2)).squeeze(1))
            for layer in self._dense:
                a, d = inputs[layer.weight], outputs[layer.weight]
                totals[layer.weight].add_(torch.bmm((d * weights.unsqueeze(2)).transpose(1, 2), a))
                if layer.bias is not None:
                    totals[layer.bias].add_(torch.bmm(weights.unsqueeze(1), d).squeeze(1))
            return torch.where(counted, norms.view(inside.shape), 0.0)

    def _add_written(
        self, totals: Named, outputs: Named, written: Named, inputs: Named, inside: Tensor, how: Clipper
    ) -> Tensor:
        rows = dict(written)
        for layer in self._dense:
            a, d = inputs[layer.weight], outputs[layer.weight]
            rows[layer.weight] = d.unsqueeze(3) * a.unsqueeze(2)
            if layer.bias is not None:
                rows[layer.bias] = d
        lengths = torch.zeros(inside.shape, dtype=torch.float64, device=inside.device)
        for run, included in enumerate(inside):
            if bool(included.any()):
                run_totals = {name: total[run] for name, total in totals.items()}
                run_rows = {name: rows[name][run][included] for name in run_totals}
                lengths[run, included] = add_clipped(run_totals, run_rows, how)
        return lengths

    def along(self, states: Tensor, directions: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products (R, c) of unclipped gradients with ``directions`` (R, P), and their squared norms; float64."""
        towards = self.layout.split(directions)
        with full_precision(self._device):
            outputs, written, inputs = self._factors(states, x, y)
            products = torch.zeros(y.shape, dtype=torch.float64, device=states.device)
            for name, rows in written.items():
                products += torch.bmm(rows.flatten(2), towards[name].flatten(1).unsqueeze(2)).squeeze(2)
            for layer in self._dense:
                moved = torch.bmm(inputs[layer.weight], towards[layer.weight].transpose(1, 2))
                if layer.bias is not None:
                    moved = moved + towards[layer.bias].unsqueeze(1)
                products += (outputs[layer.weight] * moved).sum(2)
            return products, torch.stack(list(self._squares(inputs, outputs, written).values())).sum(0)

    def _factors(self, states: Tensor, x: Tensor, y: Tensor) -> tuple[Named, Named, Named]:
        """Gradients of dense layers' outputs, gradients of other parameters, and inputs of dense layers."""
        parameters = self.layout.split(states)
        taps = {layer.weight: states.new_zeros(*y.shape, layer.width) for layer in self._dense}
        other_parameters = {name: parameters[name] for name in self._others}
        (outputs, written), inputs = self._gradients(taps, other_parameters, parameters, x, y)
        return outputs, written, inputs

    def _squares(self, inputs: Named, outputs: Named, written: Named) -> dict[str, Tensor]:
        squares = {name: _squares_of(rows) for name, rows in written.items()}
        for layer in self._dense:
            output = _squares_of(outputs[layer.weight])
            squares[layer.weight] = _squares_of(inputs[layer.weight]) * output
            if layer.bias is not None:
                squares[layer.bias] = output
        return squares

    def _tapped_loss(
        self, taps: Named, other_parameters: Named, parameters: Named, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Named]:
        """One record's loss with ``taps`` added to the outputs of dense layers, and the inputs of those layers."""
        all_parameters = {**parameters, **other_parameters}
        with _Taps(all_parameters, taps) as mode:
            outputs = self._model.forward(all_parameters, x.unsqueeze(0))
            loss = self._model.loss(outputs, y.unsqueeze(0))[0]
        return loss, mode.inputs

    def _find_dense(self, x: Tensor, y: Tensor) -> tuple[_Dense, ...]:
        """Layers whose parameters are used exactly once, on one row; found by a trial pass."""
        module_parameters = dict(self._module.named_parameters())
        trainable = {name: module_parameters[name].detach().to(x.device).requires_grad_() for name in self.layout.names}
        anchor = torch.zeros((), device=x.device, requires_grad=True)
        with torch.enable_grad():
            with _Taps(trainable, None) as mode:
                outputs = self._model.forward(trainable, x.unsqueeze(0))
                loss = self._model.loss(outputs, y.unsqueeze(0))[0] + anchor
            elsewhere = torch.autograd.grad(loss, [anchor, *trainable.values()], allow_unused=True)[1:]
        used = {name for name, gradient in zip(trainable, elsewhere, strict=True) if gradient is not None}
        names = [name for layer in mode.layers for name in (layer.weight, layer.bias) if name is not None]
        used |= {name for name in names if names.count(name) > 1}
        return tuple(layer for layer in mode.layers if not used & {layer.weight, layer.bias})


def tiles(runs: int, records: int, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Slices of models and of their records, with at most ``chunk`` records and as many models as possible."""
    height = min(runs, chunk)
    width = max(1, chunk // height)
    for top in range(0, runs, height):
        for left in range(0, records, width):
            yield slice(top, top + height), slice(left, left + width)


class _Taps(TorchFunctionMode):
    """Intercept dense layers on one row: add ``taps`` to their outputs and keep their inputs, by the weight's name.

    Without taps, find the layers to intercept and hide their parameters from autograd.
    """

    def __init__(self, parameters: Named, taps: Named | None) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in parameters.items()}
        self._taps = taps
        self.inputs: dict[str, Tensor] = {}
        self.layers: list[_Dense] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            return self._linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name, bias_name = self._names.get(id(weight)), self._names.get(id(bias))
        fits = name is not None and (bias is None or bias_name is not None) and input.ndim == 2 and weight.ndim == 2
        if self._taps is None and fits and len(input) == 1:
            self.layers.append(_Dense(str(name), bias_name, len(weight)))
            return nn.functional.linear(input, weight.detach(), None if bias is None else bias.detach())
        output = nn.functional.linear(input, weight, bias)
        if self._taps is not None and name is not None and name in self._taps:
            self.inputs[name] = input.squeeze(0)
            output = output + self._taps[name]
        return output


def _where(mask: Tensor, rows: Tensor) -> Tensor:
    return torch.where(mask.view(*mask.shape, *[1] * (rows.ndim - 2)), rows, 0.0)


def _squares_of(rows: Tensor) -> Tensor:
    return squares_of(rows.flatten(0, 1)).view(rows.shape[:2])
