"""Whether the optimizer of a loop of one's own got the noise that the loop tells of: sums for one test at the end.

At a step the optimizer gets g = (S + n) / D, with n the noise that was told of, S the sum of clipped gradients and D
the divisor, where the loop says it. Along the fixed directions of the noise, in units of its deviation, added up over
the steps are

    a = sum g . n,  A = sum g . g,  b = sum n . n,

with D g for g where D is known, and of each step how large D can be at most: D |g| = |S + n| <= (sum of the norms after
clipping) + |n|. Where D is known S = D g - n is as well, and its length along the directions, which is no longer than
that of S, is kept for the step.
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


class GradientsGot:
    """Looks at the gradients when the optimizer is about to step, and compares them when the step is told of."""

    def __init__(self, parameters: Sequence[nn.Parameter], sizes: Sequence[int]) -> None:
        """``parameters``: those that noise is added to, with these sizes."""
        self._parameters, self._sketch = list(parameters), NoiseSketch(sizes)
        self._layers = len(sizes)
        self._got: Tensor | None = None
        self._sums = [0.0, 0.0, 0.0]
        self._most: list[float] = []
        self._divided = 0
        self._rounding = 0.0

    def look(self) -> None:
        """The optimizer is about to step with these gradients."""
        self._got = None
        if any(p.grad is None or p.grad.is_sparse for p in self._parameters):
            return
        self._sketch.clear()
        for p in self._parameters:
            assert p.grad is not None
            self._sketch.add(p.grad)
            self._rounding = max(self._rounding, _ROUNDINGS * torch.finfo(p.grad.dtype).eps)
        self._got = self._sketch.results()

    def compare(self, step: PendingStep) -> None:
        """The step that was told of: with its noise and its norms, where it made one update."""
        got, self._got = self._got, None
        known = step.sketch is not None and step.updates == 1 and len(step.norms) > 0 and step.deviation > 0.0
        if got is None or step.sketch is None or not known or len(got) != len(step.sketch):
            return
        noise = step.sketch.to(got.device)
        divided = step.divisor > 0.0
        if divided:
            got[: self._layers] *= step.divisor**2
            got[self._layers :] *= step.divisor
            step.sum_norm = self._shortest(got[self._layers :], noise[self._layers :])
        along, told = got[self._layers :] / step.deviation, noise[self._layers :] / step.deviation
        longest = torch.stack([norms.sum().to(got.device) for norms in step.norms]).sum()
        values = [along @ told, along @ along, told @ told, got[: self._layers].sum(), noise[: self._layers].sum()]
        a, of_got, of_noise, squares, noisy, contributed = torch.stack([*values, longest]).tolist()
        if not (math.isfinite(a) and math.isfinite(contributed) and squares > 0.0):
            return
        self._sums = [one + more for one, more in zip(self._sums, (a, of_got, of_noise), strict=True)]
        self._most.append((contributed + math.sqrt(noisy)) / math.sqrt(squares))
        self._divided += divided

    def _shortest(self, got: Tensor, noise: Tensor) -> Tensor:
        """How long the sum is at least, by what is along the directions, and whatever was rounded."""
        rounded = self._rounding * (torch.linalg.vector_norm(got) + torch.linalg.vector_norm(noise))
        length: Tensor = (torch.linalg.vector_norm(got - noise) - rounded).clamp_min(0.0)
        return length

    def sums(self) -> list[float] | None:
        """[steps, a, A, b, the largest divisor at the middle step, steps whose divisor was told]; None for no step.

        Where the divisor of some was told and of others not, the sums are of no use, and None as well.
        """
        if not self._most or self._divided not in (0, len(self._most)):
            return None
        return [len(self._most), *self._sums, median(self._most), self._divided]
