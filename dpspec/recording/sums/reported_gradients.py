"""Whether the optimizer of a custom loop steps with the reported sum and noise.

At a step the optimizer gets g = (S + n) / D, with S the sum of clipped gradients, n the noise and D a divisor. If the
loop reports S and n, D is fitted by least squares, and the length of D g - S - n over all coordinates must be rounding.
For a test at the end, the recorder adds up over the steps, along the directions of its sketch and in units of the
noise's standard deviation,

    a = sum g . n,  A = sum g . g,  b = sum n . n,

with D g for g if S was reported, and keeps an upper bound on D for each step: D |g| = |S + n| <= (sum of the norms
after clipping) + |n|.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from dpspec.recording.pending_step import PendingStep
from dpspec.recording.watching.noise_sketch import NoiseSketch

#: Upper bound on the number of roundings of a coordinate between the sum and the optimizer's gradient.
_ROUNDINGS = 8

#: Coordinates that are compared in double precision at one time.
_CHUNK = 2**20


class ReportedGradients:
    """Copies the gradients before the optimizer steps, and compares them when the loop reports the step."""

    def __init__(self, parameters: Sequence[nn.Parameter], sketch: NoiseSketch) -> None:
        """parameters: those that noise is added to. sketch: the one of the reported sum and noise."""
        self._parameters, self._sketch = list(parameters), sketch
        self._sizes = [p.numel() for p in self._parameters]
        self._got: Tensor | None = None
        self._sums = [0.0, 0.0, 0.0]
        self._most: list[float] = []
        self._summed = self._apart = 0
        self._eps = self._room = 0.0

    def before_step(self) -> None:
        self._got = self._gradients()

    def after_step(self, *, added: bool = False) -> None:
        """Forget the step if a closure or a hook since :meth:`before_step` made other gradients.

        added: whether the step itself adds to its gradients.
        """
        if self._got is None:
            return
        now = self._gradients()
        if now is None or not (added or torch.equal(now, self._got)):
            self._got = None

    @property
    def found(self) -> list[float] | None:
        """[steps, a, A, b, median bound on the divisor, steps with a reported sum, steps at which sum and noise are not
        the gradient, length that rounding can hide in standard deviations]; None if no step was compared."""
        if not self._most:
            return None
        return [len(self._most), *self._sums, median(self._most), self._summed, self._apart, self._room]

    @torch.no_grad()
    def _gradients(self) -> Tensor | None:
        grads = [p.grad for p in self._parameters if p.grad is not None and not p.grad.is_sparse]
        if not grads or len(grads) < len(self._parameters):
            return None
        self._eps = max(self._eps, *(torch.finfo(grad.dtype).eps for grad in grads))
        return torch.cat([grad.detach().reshape(-1).to(grads[0].device) for grad in grads])

    @torch.no_grad()
    def compare(self, step: PendingStep, noise: Tensor | None, total: Tensor | None) -> None:
        """Compare a reported step that made one update with its noise and sum, all coordinates in a row."""
        got, self._got = self._got, None
        comparable = step.sketch is not None and step.updates == 1 and len(step.norms) > 0 and step.deviation > 0.0
        if got is None or noise is None or step.sketch is None or not comparable or got.shape != noise.shape:
            return
        layers, longest = len(self._sizes), torch.stack([norms.sum().cpu() for norms in step.norms]).sum()
        sketch = self._sketch.of(torch.split(got, self._sizes))
        along = sketch[layers:] / step.deviation
        reported = step.sketch[layers:].to(along.device) / step.deviation
        divisor = 1.0
        if total is not None:
            divisor = self._divisor(got, noise.to(got.device), total.to(got.device), step)
        a, of_got, of_noise = torch.stack([along @ reported, along @ along, reported @ reported]).tolist()
        length, noisy = math.sqrt(float(sketch[:layers].sum())), math.sqrt(float(step.sketch[:layers].sum()))
        if not (math.isfinite(a) and math.isfinite(float(longest)) and length > 0.0):
            return
        increments = (divisor * a, divisor**2 * of_got, of_noise)
        self._sums = [partial_sum + increment for partial_sum, increment in zip(self._sums, increments, strict=True)]
        self._most.append((float(longest) + noisy) / (divisor * length))
        self._summed += total is not None

    def _divisor(self, got: Tensor, noise: Tensor, total: Tensor, step: PendingStep) -> float:
        """Fit D of a step with a reported sum, and count the step if the rest exceeds rounding; 1 if no D fits."""
        products = torch.zeros(4, dtype=torch.float64, device=got.device)
        for g, n, s in _chunks(got, noise, total):
            products += torch.stack([g @ (s + n), g @ g, n @ n, s @ s])
        product, of_got, of_noise, of_sum = products.tolist()
        divisor = product / of_got if of_got > 0.0 else math.nan
        if not (math.isfinite(divisor) and divisor > 0.0):
            self._apart += 1
            return 1.0
        left = torch.zeros((), dtype=torch.float64, device=got.device)
        for g, n, s in _chunks(got, noise, total):
            left += (divisor * g - s - n).square_().sum()
        rounding = _ROUNDINGS * self._eps * (math.sqrt(of_sum) + math.sqrt(of_noise) + divisor * math.sqrt(of_got))
        differs = not math.sqrt(float(left)) <= rounding
        self._apart += differs
        self._room = max(self._room, rounding / step.deviation)
        step.divisor = math.nan if differs else float(f"{divisor:.6g}")  # as exact as rounding leaves it
        return 1.0 if differs else divisor


def _chunks(*rows: Tensor) -> Iterator[list[Tensor]]:
    for part in zip(*(torch.split(row.detach(), _CHUNK) for row in rows), strict=True):
        yield [row.double() for row in part]
