"""What theory says of the mechanism ``conformdemo``: upper bounds on epsilon, exact up to float64."""

from __future__ import annotations

import math


def epsilon(scale: float, group_size: int, delta: float = 0.0) -> float:
    """The least epsilon at ``delta`` for groups of ``group_size`` records, added or removed.

    k / scale + 2 ln(1 - delta), or 0: a group of k records moves the count by at most k, and Laplace noise of scale b
    under a shift of k has the privacy profile delta(epsilon) = 1 - exp((epsilon - k / b) / 2) (Dwork, McSherry, Nissim
    and Smith 2006 for delta 0; Balle, Barthe and Gaboardi 2018 for the profile). Attained, hence the least.
    """
    if not scale > 0 or group_size < 1 or not 0 <= delta < 1:
        raise ValueError(f"need scale > 0, group_size >= 1, 0 <= delta < 1, got {scale}, {group_size}, {delta}")
    return max(0.0, group_size / scale + 2.0 * math.log1p(-delta))
