"""Whether the optimizer of a custom loop steps with the reported sum and noise.

At a step the optimizer gets g = (S + n) / D, with S the sum of clipped gradients, n the noise and D a divisor. If the
loop reports S and n, D is fitted by least squares, and the length of D g - S - n over all coordinates must be rounding.
Centered gradients (:mod:`dpspec_recording.watching.centering`), a projection of the noisy sum, have the same fit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dpspec_recording.pending_step import PendingStep
from dpspec_recording.watching.centering import is_centered_row

#: Whether a map explains gradients: from the sum, the noise, to the gradients.
Explaining: TypeAlias = Callable[[Tensor, Tensor, Tensor], bool]

#: Upper bound on the number of roundings of a coordinate between the sum and the optimizer's gradient.
_ROUNDINGS = 8

#: Coordinates that are compared in double precision at one time.
_CHUNK = 2**20


class LoopGradients:
    """Copies the gradients before the optimizer steps, and compares them when the loop reports the step.

    Attributes:
        steps: The number of compared steps.
        summed: The number of these with a reported sum.
        different: The number of these with other gradients than sum and noise.
        hidden: The largest length of noise that rounding can hide, in standard deviations.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """parameters: those that noise is added to."""
        self._parameters = list(parameters)
        self._got: Tensor | None = None
        self.steps = self.summed = self.different = 0
        self._eps = self.hidden = 0.0

    def before_step(self) -> None:
        self._got = self._gradients()

    def after_step(self, *, added: bool = False) -> None:
        """Forget the step if a closure, a hook or the optimizer made other than centered gradients in it.

        added: whether the step itself adds to its gradients.
        """
        if self._got is None:
            return
        now = self._gradients()
        if now is None or not (added or torch.equal(now, self._got) or self._is_centered(self._got, now)):
            self._got = None

    @torch.no_grad()
    def _gradients(self) -> Tensor | None:
        grads = [p.grad for p in self._parameters if p.grad is not None and not p.grad.is_sparse]
        if not grads or len(grads) < len(self._parameters):
            return None
        self._eps = max(self._eps, *(torch.finfo(grad.dtype).eps for grad in grads))
        return torch.cat([grad.detach().reshape(-1).to(grads[0].device) for grad in grads])

    @torch.no_grad()
    def compare(
        self, step: PendingStep, noise: Tensor | None, total: Tensor | None, explain: Explaining = lambda *_: False
    ) -> None:
        """Compare a reported step that made one update with its noise and sum, all coordinates in a row.

        explain: Returns whether the gradients come from a map of sum and noise.
        """
        got, self._got = self._got, None
        comparable = step.updates == 1 and len(step.norms) > 0 and step.deviation > 0.0
        if got is None or noise is None or not comparable or got.shape != noise.shape:
            return
        summed = torch.zeros_like(noise) if total is None else total
        noise, summed = noise.to(got.device), summed.to(got.device)
        products = torch.zeros(4, dtype=torch.float64, device=got.device)
        for g, n, s in _chunks(got, noise, summed):
            products += torch.stack([g @ (s + n), g @ g, n @ n, s @ s])
        product, of_got, of_noise, of_sum = products.tolist()
        if not (math.isfinite(product) and math.isfinite(of_sum) and 0.0 < of_got < math.inf):
            return
        self.steps += 1
        if total is None:
            return
        self.summed += 1
        divisor = product / of_got
        left = torch.zeros((), dtype=torch.float64, device=got.device)
        for g, n, s in _chunks(got, noise, summed):
            left += (divisor * g - s - n).square_().sum()
        rounding = _ROUNDINGS * self._eps * (math.sqrt(of_sum) + math.sqrt(of_noise) + divisor * math.sqrt(of_got))
        differs = not (divisor > 0.0 and math.sqrt(float(left)) <= rounding)
        if differs and divisor > 0.0:
            differs = not self._is_centered(summed + noise, divisor * got)
        is_mapped = differs and explain(summed, noise, got)
        self.different += differs and not is_mapped
        self.hidden = max(self.hidden, rounding / step.deviation)
        step.divisor = math.nan if differs else float(f"{divisor:.6g}")  # as exact as rounding leaves it

    def _is_centered(self, noisy: Tensor, got: Tensor) -> bool:
        return is_centered_row(noisy, got, [p.shape for p in self._parameters])


def _chunks(*rows: Tensor) -> Iterator[list[Tensor]]:
    for part in zip(*(torch.split(row.detach(), _CHUNK) for row in rows), strict=True):
        yield [row.double() for row in part]
