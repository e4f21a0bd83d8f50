"""One step: the Renyi divergence between a batch law with a record and the one without it (Thudi et al., Theorem 3.2).

With q the probability that the record is drawn and nu = (what it changes of the update) / (noise), both directions of

    D_a <= ln E[(1 - q + q e^(nu z - nu^2 / 2))^a] / (a - 1),   z standard normal,

hold for every update rule if nu is the largest change over batches; for sums of clipped gradients nu is the record's
clipped norm / (noise_multiplier * clip_norm), whatever the batch. The paper expands the power, which needs whole
orders; every other step of its proof holds for real ones. Absent-first has the first link of the proof's chain,

    D_a <= ln E[(1 - q + q e^(nu z - nu^2 / 2))^(1 - a)] / (a - 1),

which is far smaller where q is small and nu large. All bounds grow with q, nu and a.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpspec.accounting.checks import Directions, Floats
from dpspec.accounting.rdp import checked_orders, sampled_gaussian_integer_rdp, sampled_gaussian_rdp

SOURCE = "Thudi et al. 2024, Theorem 3.2"

#: How an order that is not whole is treated. ``ceiling`` is the paper's and the loosest.
Rounding: TypeAlias = Literal["real", "interpolated", "ceiling"]

#: Below this nu the divergence, at most a nu^2 / 2, is nothing that a float would tell from 0.
_TINY = 1e-150


def step_divergence(
    orders: npt.ArrayLike,
    rate: npt.ArrayLike,
    ratio: npt.ArrayLike,
    direction: Directions = "both",
    rounding: Rounding = "real",
) -> Floats:
    """The bound at real ``orders`` > 1 for ``rate`` q in [0, 1] and ``ratio`` nu >= 0; arrays broadcast.

    direction: ``both`` and ``present-first`` are Theorem 3.2; ``absent-first`` the sharper one.
    rounding: how an order between whole ones is bounded. ``interpolated``: (a - 1) D_a is convex in a and 0 at 1;
        ``ceiling``: D_a grows with a. real <= interpolated <= ceiling.
    """
    a, q, nu = np.broadcast_arrays(checked_orders(orders), _rates(rate), _ratios(ratio))
    if rounding == "real":
        return _real(a, q, nu, direction)
    if rounding not in ("interpolated", "ceiling"):
        raise ValueError(f"rounding must be real, interpolated or ceiling, got {rounding!r}")
    above = np.ceil(a)
    top = (above - 1.0) * _real(above, q, nu, direction)
    if rounding == "ceiling":
        return np.asarray(top / (above - 1.0), dtype=np.float64)
    below = above - 1.0
    bottom = np.zeros_like(top)
    some = below > 1.0
    bottom[some] = (below[some] - 1.0) * _real(below[some], q[some], nu[some], direction)
    return np.asarray((bottom + (a - below) * (top - bottom)) / (a - 1.0), dtype=np.float64)


def integer_divergence(orders: npt.ArrayLike, rate: float, ratio: npt.ArrayLike) -> Floats:
    """Theorem 3.2 as the paper prints it, at whole orders >= 2; ``orders`` and ``ratio`` broadcast.

    ln sum_k C(a, k) (1 - q)^(a - k) q^k e^(nu^2 (k^2 - k) / 2) / (a - 1).
    """
    a, nu = np.broadcast_arrays(checked_orders(orders), _ratios(ratio))
    q = float(_rates(rate))
    found = np.zeros(a.shape)
    some = (nu > _TINY) & (q > 0.0)
    found[some] = sampled_gaussian_integer_rdp(a[some], q, 1.0 / nu[some])
    return found


def largest_mean_change(norm: float, distances: npt.ArrayLike = ()) -> float:
    """The largest change that a record makes to the mean of a batch, over all batches of X: exact in one pass.

    norm: of the record's clipped gradient g. distances: |g - g_x| for every x in X. The largest of |g| (the empty
    batch, whose mean counts as 0) and |g - g_x| / 2 (batches of one); larger batches dilute more. At most
    (norm + clip_norm) / 2 where every gradient is clipped.
    """
    far = np.asarray(distances, dtype=np.float64)
    return float(max(float(_ratios(norm)), 0.5 * float(np.max(far, initial=0.0))))


def _real(a: Floats, q: Floats, nu: Floats, direction: Directions) -> Floats:
    found = np.zeros(a.shape)
    some = (nu > _TINY) & (q > 0.0)
    if np.any(some):
        found[some] = sampled_gaussian_rdp(a[some], q[some], 1.0 / nu[some], direction)
    return found


def _rates(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & (array <= 1.0)):
        raise ValueError("rate must be between 0 and 1")
    return array


def _ratios(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & np.isfinite(array)):
        raise ValueError("ratio must be finite and not negative")
    return array
