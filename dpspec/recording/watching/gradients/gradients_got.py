"""Whether the optimizer of a loop of one's own got the sum and the noise that the loop tells of.

At a step the optimizer gets g = (S + n) / D, with S the sum of clipped gradients, n the noise and D a divisor. Where S
and n are told, D is the number that brings D g closest to S + n, along the recorder's fixed directions, and what is
left must be rounding: noise that is missing in one layer, or at one step, is seen whatever its size. For one test at
the end are added up over the steps, in units of the noise's deviation,

    a = sum g . n,  A = sum g . g,  b = sum n . n,

with D g for g where S was told, and of each step how large D can be at most: D |g| = |S + n| <= (sum of the norms after
clipping) + |n|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor, nn

from dpspec.recording.watching.noise_sketch import NoiseSketch
from dpspec.recording.watching.pending_step import PendingStep

#: A gradient is rounded at most so often between the sum and what the optimizer gets.
_ROUNDINGS = 8

#: Signs of rounding errors are as good as random: along few of many directions they are this often their size at most.
_SPREAD = 100.0


class GradientsGot:
    """Looks at the gradients when the optimizer is about to step, and compares them when the step is told of."""

    def __init__(self, parameters: Sequence[nn.Parameter], sizes: Sequence[int]) -> None:
        """``parameters``: those that noise is added to, with these sizes."""
        self._parameters, self._sketch = list(parameters), NoiseSketch(sizes)
        self._layers = len(sizes)
        self._share = math.sqrt(self._sketch.width / max(1, sum(sizes)))
        self._got: Tensor | None = None
        self._sums = [0.0, 0.0, 0.0]
        self._most: list[float] = []
        self._summed = self._apart = 0
        self._eps = self._room = 0.0

    def look(self) -> None:
        """The optimizer is about to step with these gradients."""
        self._got = self._gradients()

    def stepped(self) -> None:
        """The optimizer has stepped: where a closure or a hook made other gradients meanwhile, nothing is known of
        those that it stepped with."""
        if self._got is None:
            return
        now = self._gradients()
        if now is None or not torch.equal(now, self._got):
            self._got = None

    def _gradients(self) -> Tensor | None:
        """The gradients as they are now, in the numbers of a sketch; None where one of them is none."""
        if any(p.grad is None or p.grad.is_sparse for p in self._parameters):
            return None
        self._sketch.clear()
        for p in self._parameters:
            assert p.grad is not None
            self._sketch.add(p.grad)
            self._eps = max(self._eps, torch.finfo(p.grad.dtype).eps)
        return self._sketch.results()

    def compare(self, step: PendingStep) -> None:
        """The step that was told of: with its noise and its norms, where it made one update."""
        got, self._got = self._got, None
        known = step.sketch is not None and step.updates == 1 and len(step.norms) > 0 and step.deviation > 0.0
        if got is None or step.sketch is None or not known or len(got) != len(step.sketch):
            return
        noise, longest = step.sketch, torch.stack([norms.sum().cpu() for norms in step.norms]).sum()
        squares, along = got[: self._layers].sum(), got[self._layers :] / step.deviation
        told = noise[self._layers :].to(got.device) / step.deviation
        divisor = 1.0
        if step.summed is not None:
            divisor = self._divisor(along, told, squares, noise, step)
        a, of_got, of_noise = torch.stack([along @ told, along @ along, told @ told]).tolist()
        length, noisy = math.sqrt(float(squares)), math.sqrt(float(noise[: self._layers].sum()))
        if not (math.isfinite(a) and math.isfinite(float(longest)) and length > 0.0):
            return
        more = (divisor * a, divisor**2 * of_got, of_noise)
        self._sums = [one + another for one, another in zip(self._sums, more, strict=True)]
        self._most.append((float(longest) + noisy) / (divisor * length))
        self._summed += step.summed is not None

    def _divisor(self, along: Tensor, told: Tensor, squares: Tensor, noise: Tensor, step: PendingStep) -> float:
        """D of a step whose sum was told, and whether anything but rounding is left; 1 where no D fits."""
        assert step.summed is not None
        summed = step.summed[self._layers :].to(along.device) / step.deviation
        step.sum_norm = step.summed[: self._layers].sum().sqrt()
        wanted = summed + told
        found = float((along @ wanted) / (along @ along))
        if not (math.isfinite(found) and found > 0.0):
            self._apart += 1
            return 1.0
        parts = (step.sum_norm, noise[: self._layers].sum().sqrt(), found * squares.sqrt())
        room = self._eps * sum(float(part) for part in parts) / step.deviation * min(_ROUNDINGS, _SPREAD * self._share)
        apart = float(torch.linalg.vector_norm(found * along - wanted)) > room
        self._apart += apart
        self._room = max(self._room, room)
        step.divisor = math.nan if apart else float(f"{found:.6g}")  # as exact as rounding leaves it
        return 1.0 if apart else found

    def sums(self) -> list[float] | None:
        """[steps, a, A, b, the largest divisor at the middle step, steps whose sum was told, steps at which sum and
        noise are not the gradient, the most that rounding can hide in deviations]; None where no step was compared."""
        if not self._most:
            return None
        return [len(self._most), *self._sums, median(self._most), self._summed, self._apart, self._room]
