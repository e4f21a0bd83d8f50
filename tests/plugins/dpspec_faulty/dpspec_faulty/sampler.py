"""One number with Gaussian noise in a number type: a mechanism whose bound is the one of real numbers.

The attack of Theorem F2 (``docs/explanation/proofs/floating-point.md``) reads low-order bits: a released value is
possible with a sum only if a float of the noise leads to it. Integers, with discrete Gaussian noise, survive it.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import PrivacyLoss
from dpspec.accounting.discrete_noise import DISCRETE_SCALE, dominating_noise_multiplier
from dpspec.training.discrete_gaussian import discrete_gaussian

#: Sums without and with the record, which adds -1.
SUMS = (1.0, 0.0)

#: The score of a value that is impossible with the other sum.
CERTAIN = 1e6

EXAMPLE = """\
dpspec: 1
name: float16-noise
mechanism: {kind: noisy-number, numbers: float16, noise_multiplier: 2.0}
data: {kind: digits}
claims:
  - {id: one-record, kind: approx-dp, epsilon: 2.1, delta: 1e-5, refuted_by: attack, expect: [refuted, contradicted]}
audit: {method: many-run, releases: 20000, runs: 1, seed: 3}
"""


def is_possible(values: Tensor, total: float) -> Tensor:
    """Whether fl(total + z) can be each of ``values`` (n,) for some z of their floating-point type.

    The sum does not fall as z rises, so z is the largest float up to value - total, or the smallest one from it.
    """
    sums = torch.full_like(values, total)
    differences = values.double() - total  # exact for up to 24 bits, unless far apart: then the neighbors cover it
    nearest = differences.to(values.dtype)
    beside = [torch.nextafter(nearest, torch.full_like(nearest, sign)) for sign in (-torch.inf, torch.inf)]
    return torch.stack([sums + noise == values for noise in (nearest, *beside)]).any(0)


def float_release(dtype: torch.dtype) -> Callable[[Tensor, float, torch.Generator], tuple[Tensor, Tensor]]:
    """The released values and their noise, as a training in ``dtype`` adds them."""

    def release(sums: Tensor, sigma: float, source: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(sums), generator=source, dtype=dtype) * sigma
        return sums.to(dtype) + noise, noise.double()

    return release


def integer_release(sums: Tensor, sigma: float, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same in integers, whose spacing is sigma / DISCRETE_SCALE; the sensitivity is rounded toward zero."""
    grid = sigma / DISCRETE_SCALE
    noise = discrete_gaussian(len(sums), DISCRETE_SCALE, source)
    return ((sums / grid).trunc().long() + noise).double() * grid, noise.double() * grid


RELEASES = {
    **{name: float_release(getattr(torch, name)) for name in ("float16", "bfloat16", "float32")},
    "integers": integer_release,
}


class NoisyNumber(kit.AttackedMechanism):
    """A number that one record changes by 1, with Gaussian noise."""

    kind = "noisy-number"
    schema: ClassVar = {
        "numbers": kit.choice("Number type of sum and noise.", *RELEASES, default="float32"),
        "noise_multiplier": kit.number("Standard deviation of the noise.", least=0.01, most=100),
    }
    assumptions = (
        dps.Assumption(name="noise-scale", status="declared", text="Gaussian noise of this standard deviation"),
        dps.Assumption(name="exact-arithmetic", status="declared", text="noise and sums are real numbers"),
    )
    rigor = "certified"
    example = EXAMPLE
    source = "Balle and Wang 2018, Theorem 8"
    attack = "low-order bits, and the log-likelihood ratio of real numbers"
    noise = "gaussian"
    scope = dps.Scope()

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Any:
        """Of Gaussian noise of real numbers, or of the Gaussian that dominates the integers."""
        if delta == 0.0:
            return math.inf
        sigma = float(spec.mechanism["noise_multiplier"])
        if spec.mechanism["numbers"] == "integers":
            sigma = dominating_noise_multiplier(sigma)
        return PrivacyLoss.gaussian(sigma / group_size).epsilon(delta)

    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: Any
    ) -> kit.Releases:
        """Release a number for each coin, and score it; groups add ``group_size`` times -1 to a sum of as much."""
        sigma, numbers = float(inputs["mechanism"]["noise_multiplier"]), str(inputs["mechanism"]["numbers"])
        absent, present = (group_size * total for total in SUMS)
        source = torch.Generator().manual_seed(context.seed(index, "noise", str(group_size)))
        sums = torch.where(torch.from_numpy(np.asarray(coins) == 1), present, absent).double()
        values, noise = RELEASES[numbers](sums, sigma, source)
        released = values.double()
        scores = ((released - absent).square() - (released - present).square()) / (2.0 * sigma**2)
        if numbers != "integers":
            scores[~is_possible(values, absent)] = CERTAIN
            scores[~is_possible(values, present)] = -CERTAIN
        return kit.Releases(scores=scores.numpy(), noise=(noise / sigma).numpy())


def mechanisms() -> Iterable[dps.Mechanism]:
    """The mechanism's descriptor."""
    yield NoisyNumber.offer()
