"""What theory says of Laplace histograms: upper bounds on epsilon, exact up to float64."""

import math


def moved(adjacency: str, group_size: int) -> int:
    """By how much all counts together change with a group: one for each added or removed record, two if replaced."""
    return group_size * {"add-remove": 1, "replace-one": 2}[adjacency]


def epsilon(scale: float, moved: int, delta: float = 0.0) -> float:
    """An epsilon at ``delta`` that holds where the counts change by at most ``moved`` in l1.

    moved / scale, at every delta (Dwork, McSherry, Nissim and Smith 2006). Where moved is 1 one count changes, by 1,
    and the privacy profile delta = 1 - exp((epsilon - 1 / scale) / 2) of a shifted Laplace variable is the least there
    is (Balle, Barthe and Gaboardi 2018): 1 / scale + 2 ln(1 - delta), or 0.
    """
    if not scale > 0 or moved < 1 or not 0 <= delta < 1:
        raise ValueError(f"need scale > 0, moved >= 1, 0 <= delta < 1, got {scale}, {moved}, {delta}")
    if moved > 1:
        return moved / scale
    return max(0.0, 1.0 / scale + 2.0 * math.log1p(-delta))
