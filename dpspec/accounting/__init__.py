"""Privacy accounting in float64 and log space, without torch. Import names from here, not from the modules.

Every answer about a privacy loss is an ``Interval`` that contains the true value; ``library_accuracy`` is the one
assumption behind it.

* Steps: ``Mixture`` (DP-SGD and groups), ``Laplace``, ``Discrete``, or a custom ``Pair``. ``TruncatedPoisson`` (batches
  with a cap) has two, ``Revealed`` from above and one that is attained. ``RandomAllocation`` is an epoch of steps,
  ``EqualMembers`` what a group attains in it. ``gaussian`` is a module of closed forms.
* Composition: ``PrivacyLoss`` and ``group_curve``, with epsilon, delta, powers of tests and reconstruction.
* Renyi divergences (``gaussian_rdp``, ``composed_rdp``, ...) and their conversions (``best_epsilon``, ...).
* Trade-off curves: ``GaussianTradeOff``, ``LaplaceTradeOff``, ``Polygon``, certified ones by ``tradeoff_bounds``.
* ``find_boundary``: the smallest noise, or the largest number of steps, for which a condition holds.
* ``certified_upper``, ``certified_lower``: an end of an interval as a finding. The interval names its method:
  ``CLOSED``, ``ONE_STEP`` or ``GRID`` among others. ``round_up`` and ``round_down`` are for texts.

Each line of this layout uses only those above it:

* ``numerics``: intervals and findings of them, arguments, float64, monotone search, the accuracy of libraries
* ``grid``: one step's outcomes in cells of privacy loss; measures above and below them
* ``pair``: the interface of a step
* ``gaussian``, ``laplace``, ``mixture``, ``arbitrary``: the steps, and epochs of them
* ``composition``: T-fold convolution of measures on a grid, every error bounded
* ``solver``: from a question to a certified interval, grid after grid
* ``privacy_loss``: the composition of steps, and its questions
* ``rdp``: Renyi divergences and conversions
* ``tradeoff``: f-DP

Names are imported on first use: ``import dpspec.accounting`` alone imports neither numpy nor scipy.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from dpspec.accounting import gaussian
    from dpspec.accounting.arbitrary.allocation import EqualMembers, RandomAllocation
    from dpspec.accounting.arbitrary.discrete import Discrete
    from dpspec.accounting.arbitrary.revealed import Revealed
    from dpspec.accounting.arbitrary.truncated_poisson import TruncatedPoisson
    from dpspec.accounting.grid.cells import Bins, Cells, TooLongError
    from dpspec.accounting.laplace import Laplace
    from dpspec.accounting.mixture.masses import log_binomial
    from dpspec.accounting.mixture.mixture import Mixture
    from dpspec.accounting.numerics.findings import certified_lower, certified_upper, library_accuracy
    from dpspec.accounting.numerics.floats import (
        DIRECTIONS,
        EPS,
        OPPOSITE,
        Direction,
        Directions,
        Floats,
        directions,
        finite,
        inside,
        one_direction,
        positive,
        whole,
    )
    from dpspec.accounting.numerics.interval import Interval, round_down, round_up
    from dpspec.accounting.numerics.search import (
        LEAST_TRIED,
        Boundary,
        NeverHoldsError,
        bisect,
        bisect_by_margin,
        crossing,
        find_boundary,
    )
    from dpspec.accounting.pair import Pair, TruncatedPair
    from dpspec.accounting.privacy_loss import PrivacyLoss, group_curve
    from dpspec.accounting.rdp.conversions import (
        Best,
        BestEpsilon,
        Conversion,
        best_epsilon,
        best_log_delta,
        epsilon_at_orders,
        log_delta_at_orders,
    )
    from dpspec.accounting.rdp.divergences import (
        checked_orders,
        composed_rdp,
        gaussian_rdp,
        laplace_rdp,
        sampled_gaussian_integer_rdp,
        sampled_gaussian_rdp,
        sampled_laplace_rdp,
    )
    from dpspec.accounting.rdp.moments import log_excess_power
    from dpspec.accounting.rdp.selection import SELECTION_ORDERS, Tries, drawn_cell_rdp, selection_rdp
    from dpspec.accounting.solver.solve import GRID
    from dpspec.accounting.solver.without_grid import CLOSED, ONE_STEP
    from dpspec.accounting.tradeoff.certified_curves import TradeOffBounds, tradeoff_bounds
    from dpspec.accounting.tradeoff.polygon import GdpFit, Lines, Polygon, fit_gdp
    from dpspec.accounting.tradeoff.trade_off import GaussianTradeOff, LaplaceTradeOff, TradeOff

_NAMES = {
    "numerics.interval": "Interval round_down round_up",
    "numerics.floats": (
        "DIRECTIONS EPS OPPOSITE Direction Directions Floats directions finite inside one_direction positive whole"
    ),
    "numerics.search": "Boundary LEAST_TRIED NeverHoldsError bisect bisect_by_margin crossing find_boundary",
    "numerics.findings": "certified_lower certified_upper library_accuracy",
    "grid.cells": "Bins Cells TooLongError",
    "pair": "Pair TruncatedPair",
    "laplace": "Laplace",
    "arbitrary.allocation": "EqualMembers RandomAllocation",
    "mixture.mixture": "Mixture",
    "mixture.masses": "log_binomial",
    "arbitrary.discrete": "Discrete",
    "arbitrary.revealed": "Revealed",
    "arbitrary.truncated_poisson": "TruncatedPoisson",
    "solver.solve": "GRID",
    "solver.without_grid": "CLOSED ONE_STEP",
    "privacy_loss": "PrivacyLoss group_curve",
    "rdp.divergences": (
        "checked_orders composed_rdp gaussian_rdp laplace_rdp sampled_gaussian_integer_rdp "
        "sampled_gaussian_rdp sampled_laplace_rdp"
    ),
    "rdp.moments": "log_excess_power",
    "rdp.conversions": (
        "Best BestEpsilon Conversion best_epsilon best_log_delta epsilon_at_orders log_delta_at_orders"
    ),
    "rdp.selection": "SELECTION_ORDERS Tries drawn_cell_rdp selection_rdp",
    "tradeoff.trade_off": "GaussianTradeOff LaplaceTradeOff TradeOff",
    "tradeoff.polygon": "GdpFit Lines Polygon fit_gdp",
    "tradeoff.certified_curves": "TradeOffBounds tradeoff_bounds",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "CLOSED",
    "DIRECTIONS",
    "EPS",
    "GRID",
    "LEAST_TRIED",
    "ONE_STEP",
    "OPPOSITE",
    "SELECTION_ORDERS",
    "Best",
    "BestEpsilon",
    "Bins",
    "Boundary",
    "Cells",
    "Conversion",
    "Direction",
    "Directions",
    "Discrete",
    "EqualMembers",
    "Floats",
    "GaussianTradeOff",
    "GdpFit",
    "Interval",
    "Laplace",
    "LaplaceTradeOff",
    "Lines",
    "Mixture",
    "NeverHoldsError",
    "Pair",
    "Polygon",
    "PrivacyLoss",
    "RandomAllocation",
    "Revealed",
    "TooLongError",
    "TradeOff",
    "TradeOffBounds",
    "Tries",
    "TruncatedPair",
    "TruncatedPoisson",
    "best_epsilon",
    "best_log_delta",
    "bisect",
    "bisect_by_margin",
    "certified_lower",
    "certified_upper",
    "checked_orders",
    "composed_rdp",
    "crossing",
    "directions",
    "drawn_cell_rdp",
    "epsilon_at_orders",
    "find_boundary",
    "finite",
    "fit_gdp",
    "gaussian",
    "gaussian_rdp",
    "group_curve",
    "inside",
    "laplace_rdp",
    "library_accuracy",
    "log_binomial",
    "log_delta_at_orders",
    "log_excess_power",
    "one_direction",
    "positive",
    "round_down",
    "round_up",
    "sampled_gaussian_integer_rdp",
    "sampled_gaussian_rdp",
    "sampled_laplace_rdp",
    "selection_rdp",
    "tradeoff_bounds",
    "whole",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for."""
    if name == "gaussian":
        return import_module(f"{__name__}.gaussian")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
