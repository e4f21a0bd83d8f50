"""Scores by which an attack ranks canaries, from numbers that a model shows of them: pure arithmetic, higher = present.

A score decides only how much an audit shows, never whether it is valid: any function of the release and of what the
adversary may know ranks as well as it can, as long as it does not know the coins.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Standard deviations below this are raised to it: a canary whose shadow values all agree would score infinitely.
_LEAST_STD = 1e-12


def confidence_logit(losses: npt.ArrayLike) -> Floats:
    """ln(p / (1 - p)) for the probability p = e^-loss of a record's own label; any shape, cross-entropy losses >= 0.

    Of all functions of the loss the one whose values are closest to normal over models (Carlini et al. 2022,
    "Membership Inference Attacks From First Principles", section IV). A loss of 0 counts as 1e-300.
    """
    loss = np.maximum(np.asarray(losses, dtype=np.float64), 1e-300)
    return np.asarray(-loss - np.log(-np.expm1(-loss)), dtype=np.float64)


def loss_difference(losses: npt.ArrayLike, reference: npt.ArrayLike) -> Floats:
    """How much lower a record's loss is than without it: ``reference`` - ``losses``, of equal shapes.

    The reference is the loss before training, or the mean over models trained without the record.
    """
    loss, base = np.asarray(losses, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    return np.asarray(base - loss, dtype=np.float64)


def gaussian_llr(
    observed: npt.ArrayLike,
    present_mean: npt.ArrayLike,
    present_std: npt.ArrayLike,
    absent_mean: npt.ArrayLike,
    absent_std: npt.ArrayLike,
) -> Floats:
    """ln of the density of N(present_mean, present_std^2) at ``observed`` over that of the absent law; broadcast."""
    x = np.asarray(observed, dtype=np.float64)
    return np.asarray(_log_density(x, present_mean, present_std) - _log_density(x, absent_mean, absent_std))


def shadow_llr(
    observed: npt.ArrayLike, present: npt.ArrayLike, absent: npt.ArrayLike, *, common_std: bool = False
) -> Floats:
    """The likelihood ratio of LiRA: ``observed`` (m,) against shadow values ``present`` (s, m) and ``absent`` (t, m).

    Each canary's laws are normals with the mean and standard deviation of its own shadow values (Carlini et al. 2022);
    with ``common_std`` all canaries share one standard deviation for each side, which is better with few shadow models.
    Raises ``ValueError`` unless each side has two models or more.
    """
    sides = []
    for values in (present, absent):
        shadow = np.asarray(values, dtype=np.float64)
        if shadow.ndim != 2 or len(shadow) < 2:
            raise ValueError("shadow values must be an array (models, canaries) of two models or more")
        std = shadow.std(axis=0, ddof=1)
        sides += [shadow.mean(axis=0), np.full_like(std, np.sqrt(np.mean(std**2))) if common_std else std]
    return gaussian_llr(observed, *sides)


def shadow_z(observed: npt.ArrayLike, absent: npt.ArrayLike, *, common_std: bool = False) -> Floats:
    """How far ``observed`` (m,) lies above what models without the canary show, ``absent`` (t, m), in its deviations.

    The offline form of LiRA, for when models with each canary are too dear.
    """
    shadow = np.asarray(absent, dtype=np.float64)
    if shadow.ndim != 2 or len(shadow) < 2:
        raise ValueError("shadow values must be an array (models, canaries) of two models or more")
    std = shadow.std(axis=0, ddof=1)
    std = np.full_like(std, np.sqrt(np.mean(std**2))) if common_std else std
    x = np.asarray(observed, dtype=np.float64)
    return np.asarray((x - shadow.mean(axis=0)) / np.maximum(std, _LEAST_STD), dtype=np.float64)


def _log_density(x: Floats, mean: npt.ArrayLike, std: npt.ArrayLike) -> Floats:
    """Up to a constant."""
    scale = np.maximum(np.asarray(std, dtype=np.float64), _LEAST_STD)
    return np.asarray(-0.5 * ((x - np.asarray(mean)) / scale) ** 2 - np.log(scale), dtype=np.float64)
