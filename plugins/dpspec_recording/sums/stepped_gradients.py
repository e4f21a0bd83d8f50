"""Copies of the noisy gradients of Opacus' optimizer on their way to the update."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpspec_recording.fingerprints import Tally, TensorSnapshot
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.shards import local
from dpspec_recording.watching.centering import is_centered_row
from dpspec_recording.watching.optimizer_updates import adds_in_place

#: Relative rounding of a gradient that is divided by the declared number, and a relative factor beyond rounding.
_DIVIDED, _FACTOR = 2.0**-18, 1e-4

#: The places of a map of the gradients.
_BEFORE, _WITHIN = "before the update", "in the update"

#: Coordinates that are compared in double precision at one time.
_CHUNK = 2**20

#: Whether a map explains gradients: of a place in the step, from values, to gradients, which may be unchanged.
Explaining = Callable[[str, Sequence[Tensor], Sequence[Tensor], bool], bool]


class SteppedGradients:
    """Whether the optimizer steps with the noisy sum over the declared divisor, at audited steps.

    Centered gradients count as the noisy sum, whether centered before the step or in it, and so do those that a map
    of it explains.

    Attributes:
        changed: The number of updates with other gradients.
        compared: The number of compared updates.
        scaled: The number of updates with one factor beyond the divisor, or after such ones.
        explained: The number of these whose factor a map explains.
    """

    def __init__(
        self,
        optimizer: Any,
        explain: Explaining = lambda *_: False,
        finds_maps: Callable[[], bool] = lambda: False,
    ) -> None:
        """Observe the gradients of an optimizer.

        Args:
            optimizer: Opacus' optimizer.
            explain: Returns whether the gradients of a place in the step come from a map of the ones before.
            finds_maps: Returns whether ``explain`` would find an unknown map in this step.
        """
        self._optimizer, self._parameters, self._explain = optimizer, list(optimizer.params), explain
        self._finds_maps = finds_maps
        self._noisy: Tensor | None = None
        self._divided: Tensor | None = None
        self._left = TensorSnapshot()
        self.changed = Tally()
        self.compared = 0
        self.scaled = self.explained = 0
        self._mapped: set[str] = set()  # the places in the step with a map

    def _row(self) -> Tensor | None:
        """(coordinates,), a copy of all gradients; None if a parameter has none."""
        gradients = [None if p.grad is None else local(p.grad).detach().reshape(-1) for p in self._parameters]
        device = self._parameters[0].device
        whole = [gradient.to(device) for gradient in gradients if gradient is not None]
        return torch.cat(whole) if whole and len(whole) == len(gradients) else None

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the noisy sum, before its division."""
        self._noisy = self._row()

    def divide(self, step: PendingStep) -> None:
        """Compare the divided gradients with the kept noisy sum, and measure the divisor."""
        noisy, self._noisy = self._noisy, None
        if noisy is not None:
            self.compared += 1
            self._compare_divided(step, noisy)

    @torch.no_grad()
    def _compare_divided(self, step: PendingStep, noisy: Tensor) -> None:
        divided = self._row()
        if divided is None or divided.shape != noisy.shape:
            self.changed.add(True)
            return
        pairs = [*zip(torch.split(divided, _CHUNK), torch.split(noisy, _CHUNK), strict=True)]
        product, square, residual = divided.new_zeros(3, dtype=torch.float64).unbind()
        for got, expected in pairs:
            doubles = got.double()
            product += doubles @ expected.double()
            square += doubles @ doubles
        fitted = product / square
        measured = torch.nan_to_num(fitted, nan=1.0, posinf=1.0)
        for got, expected in pairs:
            difference = got.double().mul_(measured).sub_(expected)
            residual += difference @ difference
        tolerance = max(_DIVIDED, *(8.0 * torch.finfo(kind).eps for kind in {p.grad.dtype for p in self._parameters}))
        differs = residual > (tolerance * measured).square() * square
        step.divided = torch.where(differs, torch.nan, fitted), 1.0
        if bool(differs) and self._is_centered(noisy, divided * measured):
            differs, step.divided = torch.zeros_like(differs), (fitted, 1.0)
        if bool(differs) and self._is_mapped(_BEFORE, noisy):
            differs = torch.zeros_like(differs)
        elif not bool(differs):
            is_scaled = abs(float(fitted) / step.divisor - 1.0) > max(_FACTOR, tolerance / 4.0)
            is_asked = is_scaled or _BEFORE in self._mapped or self._finds_maps()
            is_mapped = is_asked and self._is_mapped(_BEFORE, noisy, is_changed=is_scaled)
            if is_scaled or self.scaled:  # the map of the other steps gives the factor 1, too
                self.scaled += 1
                self.explained += is_mapped
        self.changed.add(differs)
        self._divided = divided
        self.keep_divided()

    def _is_centered(self, noisy: Tensor, got: Tensor) -> bool:
        return is_centered_row(noisy, got, [local(p).shape for p in self._parameters])

    def _is_explained(self, divided: Tensor, stepped: Tensor, *, is_changed: bool) -> bool:
        if is_changed and self._is_centered(divided, stepped):
            return True
        return self._is_mapped(_WITHIN, divided, is_changed=is_changed)

    def _is_mapped(self, stage: str, values: Tensor, *, is_changed: bool = True) -> bool:
        """Whether the gradients come from a map of a row of all values.

        Where a map was found, it is also asked about steps without a change: it may be none, as clipping of short ones.
        """
        shapes = [local(p).shape for p in self._parameters]
        rows = torch.split(values, [shape.numel() for shape in shapes])
        values_of = [row.view(shape) for row, shape in zip(rows, shapes, strict=True)]
        is_mapped = self._explain(stage, values_of, [local(p.grad) for p in self._parameters], is_changed)
        self._mapped |= {stage} if is_mapped else set()
        return is_mapped

    def keep_divided(self) -> None:
        self._left.keep(p.grad for p in self._parameters)

    def compare(self) -> None:
        """Compare the gradients with those that were kept after the division."""
        if self._left.exists:
            self.changed.add(self._left.differ(p.grad for p in self._parameters))

    def end(self) -> bool:
        """The step is over: compare the gradients unless the optimizer adds to them; whether they were compared."""
        self._noisy, divided, self._divided = None, self._divided, None
        compared = self._left.exists and not adds_in_place(self._optimizer.original_optimizer)
        if compared := compared and all(p.grad is not None for p in self._parameters):
            differs = self._left.differ(p.grad for p in self._parameters)
            changed = bool(differs)
            is_asked = divided is not None and (changed or _WITHIN in self._mapped or self._finds_maps())
            stepped = self._row() if is_asked else None
            if stepped is None or divided is None or not self._is_explained(divided, stepped, is_changed=changed):
                self.changed.add(differs)
        self._left.forget()
        return compared
