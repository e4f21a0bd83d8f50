"""Certified privacy accounting in float64 and log space, without torch.

Import names from this package; its modules are private. Every answer about a privacy loss is an :class:`Interval` that
contains the exact value, if library functions are accurate (:func:`library_accuracy`).

* Steps: :class:`Mixture` (DP-SGD and groups), :class:`Laplace`, :class:`Discrete`, :class:`TruncatedPoisson` (batches
  with a cap), :class:`RandomAllocation` (an epoch of balls-in-bins batches), or a custom :class:`Pair`.
* Composition: :class:`PrivacyLoss` and :func:`group_curve`, with epsilon, delta, powers of tests and reconstruction.
* Renyi divergences (:func:`composed_rdp`, ...) and their conversions (:func:`best_epsilon`, ...).
* Trade-off curves: :class:`GaussianTradeOff`, :class:`LaplaceTradeOff`, :class:`Polygon`, :func:`tradeoff_bounds`.
* :func:`find_boundary`: the smallest noise, or the largest number of steps, for which a condition holds.
* :func:`certified_upper` and :func:`certified_lower` turn an end of an interval into a finding.

Each module imports only modules above it:

* ``numerics``: rounding, arguments, intervals, root finding, searches that report both sides
* ``findings``: certified findings and the accuracy of libraries
* ``grid``: the interface of a step, its outcomes as cells of privacy loss, and measures above and below them
* ``gaussian``, ``laplace``, ``discrete``, ``mixture`` (on ``densities``): steps
* ``truncated_poisson``, ``allocation``: sampling schemes with other steps
* ``composition``: convolution of measures on a grid with every error bounded
* ``profiles``, ``refinement``, ``privacy_loss``: certified answers about a composition
* ``rdp``, ``moments``, ``tradeoff``, ``curves``: Renyi divergences and f-DP

Names are imported on first use, numpy and scipy with them.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    # isort: off
    from dpspec.accounting import gaussian as gaussian
    from dpspec.accounting.numerics import (
        Boundary as Boundary,
        DIRECTIONS as DIRECTIONS,
        Direction as Direction,
        Directions as Directions,
        EPS as EPS,
        Floats as Floats,
        Interval as Interval,
        LEAST_TRIED as LEAST_TRIED,
        NeverHoldsError as NeverHoldsError,
        OPPOSITE as OPPOSITE,
        bisect as bisect,
        bisect_by_margin as bisect_by_margin,
        crossing as crossing,
        directions as directions,
        find_boundary as find_boundary,
        finite as finite,
        inside as inside,
        one_direction as one_direction,
        positive as positive,
        round_down as round_down,
        round_up as round_up,
        whole as whole,
    )
    from dpspec.accounting.findings import (
        certified_lower as certified_lower,
        certified_upper as certified_upper,
        library_accuracy as library_accuracy,
    )
    from dpspec.accounting.grid import (
        Bins as Bins,
        Cells as Cells,
        Pair as Pair,
        TooLongError as TooLongError,
        TruncatedPair as TruncatedPair,
    )
    from dpspec.accounting.laplace import Laplace as Laplace
    from dpspec.accounting.discrete import Discrete as Discrete
    from dpspec.accounting.densities import log_binomial as log_binomial
    from dpspec.accounting.mixture import Mixture as Mixture
    from dpspec.accounting.truncated_poisson import Revealed as Revealed, TruncatedPoisson as TruncatedPoisson
    from dpspec.accounting.allocation import EqualMembers as EqualMembers, RandomAllocation as RandomAllocation
    from dpspec.accounting.profiles import CLOSED as CLOSED, ONE_STEP as ONE_STEP
    from dpspec.accounting.privacy_loss import GRID as GRID, PrivacyLoss as PrivacyLoss, group_curve as group_curve
    from dpspec.accounting.rdp import (
        Best as Best,
        BestEpsilon as BestEpsilon,
        Conversion as Conversion,
        SELECTION_ORDERS as SELECTION_ORDERS,
        Tries as Tries,
        best_epsilon as best_epsilon,
        best_log_delta as best_log_delta,
        checked_orders as checked_orders,
        composed_rdp as composed_rdp,
        drawn_cell_rdp as drawn_cell_rdp,
        epsilon_at_orders as epsilon_at_orders,
        gaussian_rdp as gaussian_rdp,
        laplace_rdp as laplace_rdp,
        log_delta_at_orders as log_delta_at_orders,
        sampled_gaussian_integer_rdp as sampled_gaussian_integer_rdp,
        sampled_gaussian_rdp as sampled_gaussian_rdp,
        sampled_laplace_rdp as sampled_laplace_rdp,
        selection_rdp as selection_rdp,
    )
    from dpspec.accounting.moments import log_excess_power as log_excess_power
    from dpspec.accounting.tradeoff import (
        GaussianTradeOff as GaussianTradeOff,
        GdpFit as GdpFit,
        LaplaceTradeOff as LaplaceTradeOff,
        Lines as Lines,
        Polygon as Polygon,
        TradeOff as TradeOff,
        fit_gdp as fit_gdp,
    )
    from dpspec.accounting.curves import TradeOffBounds as TradeOffBounds, tradeoff_bounds as tradeoff_bounds

#: The public names of each module.
_NAMES = {
    "numerics": (
        "Boundary DIRECTIONS Direction Directions EPS Floats Interval LEAST_TRIED NeverHoldsError OPPOSITE bisect "
        "bisect_by_margin crossing directions find_boundary finite inside one_direction positive round_down round_up "
        "whole"
    ),
    "findings": "certified_lower certified_upper library_accuracy",
    "grid": "Bins Cells Pair TooLongError TruncatedPair",
    "laplace": "Laplace",
    "discrete": "Discrete",
    "densities": "log_binomial",
    "mixture": "Mixture",
    "truncated_poisson": "Revealed TruncatedPoisson",
    "allocation": "EqualMembers RandomAllocation",
    "profiles": "CLOSED ONE_STEP",
    "privacy_loss": "GRID PrivacyLoss group_curve",
    "rdp": (
        "Best BestEpsilon Conversion SELECTION_ORDERS Tries best_epsilon best_log_delta checked_orders "
        "composed_rdp drawn_cell_rdp epsilon_at_orders gaussian_rdp laplace_rdp log_delta_at_orders "
        "sampled_gaussian_integer_rdp sampled_gaussian_rdp sampled_laplace_rdp selection_rdp"
    ),
    "moments": "log_excess_power",
    "tradeoff": "GaussianTradeOff GdpFit LaplaceTradeOff Lines Polygon TradeOff fit_gdp",
    "curves": "TradeOffBounds tradeoff_bounds",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["gaussian", *_HOME]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "gaussian":
        return import_module(f"{__name__}.gaussian")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
