"""Certified privacy accounting in float64 and log space, without torch.

Epsilon of 2000 steps of DP-SGD with noise multiplier 1 and Poisson sampling at rate 0.01, for one record and for groups
of eight, as intervals that contain the values of Ganesh 2024, Figure 1:

>>> from dpspec.accounting import Mixture, PrivacyLoss
>>> for group_size, exact in ((1, 2.95524591), (8, 34.89069562)):
...     step = Mixture.poisson(group_size, rate=0.01, noise_multiplier=1.0)
...     epsilon = PrivacyLoss.of(step).compose(2000).epsilon(1e-6)
...     print(epsilon.lower <= exact <= epsilon.upper, epsilon.upper / epsilon.lower < 1.0002)
True True
True True

Import names from this package; its modules are private. Every answer about a privacy loss is an :class:`Interval` that
contains the exact value, if library functions are accurate (:func:`library_accuracy`).

* Steps: :class:`Mixture` (DP-SGD and groups), :class:`DoubleMixture` and
  :class:`SymmetricMixture` (replaced records), :class:`Laplace`, :class:`Discrete`, :class:`TruncatedPoisson` (batches
  with a cap), :class:`RandomAllocation` (an epoch of balls-in-bins batches), :func:`largest_sum_pair` (an epoch of
  shuffled batches, from below), noise of any log-concave distribution (:class:`LogConcaveNoise`), or a custom
  :class:`Pair`.
* Adaptive clipping: :func:`joint_noise_multiplier`, its inverse :func:`gradient_noise_multiplier`,
  :func:`real_divisor_pair`.
* Composition: :class:`PrivacyLoss` and :func:`group_curve`, with epsilon, delta, powers of tests and reconstruction.
* Renyi divergences (:func:`composed_rdp`, ...) and their conversions (:func:`best_epsilon`, ...).
* Trade-off curves: :class:`GaussianTradeOff`, :class:`LaplaceTradeOff`, :class:`Polygon`, :func:`tradeoff_bounds`.
* :func:`find_boundary`: the smallest noise, or the largest number of steps, for which a condition holds.
* :func:`certified_upper` and :func:`certified_lower` turn an end of an interval into a finding.

Each module imports only modules above it:

* ``numerics``: rounding, arguments, intervals, root finding, searches that report both sides
* ``findings``: certified findings and the accuracy of libraries
* ``grid``: the interface of a step, its outcomes as cells of privacy loss, and measures above and below them
* ``gaussian``, ``laplace``, ``additive_noise``, ``discrete``, ``mixture``, ``double_mixture`` (on ``densities``): steps
* ``truncated_poisson``, ``displacement`` (on ``group_displacement``): batches with a cap
* ``adaptive_clipping``, ``shuffled``: other sampling
* ``allocation`` (on ``convex_laws`` and ``group_allocation``): random allocation
* ``composition``: convolution of measures on a grid with every error bounded
* ``profiles``, ``single_steps``, ``merging``, ``refinement``, ``privacy_loss``: certified answers about a composition
* ``moments``, ``rdp``: Renyi divergences
* ``responses``: pairs that dominate declared guarantees, such as zCDP
* ``tradeoff``, ``curves``: f-DP

Names are imported on first use, numpy and scipy with them. An argument without a meaning raises ``ValueError``, whose
message names it.
"""

from __future__ import annotations

from dpspec.lazy_names import lazy_names

TYPE_CHECKING = False  # importing typing takes longer than the rest of this module
if TYPE_CHECKING:
    from dpspec.accounting import gaussian as gaussian
    from dpspec.accounting.adaptive_clipping import *
    from dpspec.accounting.additive_noise import *
    from dpspec.accounting.allocation import *
    from dpspec.accounting.curves import *
    from dpspec.accounting.densities import *
    from dpspec.accounting.discrete import *
    from dpspec.accounting.discrete_noise import *
    from dpspec.accounting.displacement import *
    from dpspec.accounting.double_mixture import *
    from dpspec.accounting.findings import *
    from dpspec.accounting.float_noise import *
    from dpspec.accounting.grid import *
    from dpspec.accounting.group_displacement import *
    from dpspec.accounting.laplace import *
    from dpspec.accounting.mixture import *
    from dpspec.accounting.moments import *
    from dpspec.accounting.numerics import *
    from dpspec.accounting.privacy_loss import *
    from dpspec.accounting.profiles import *
    from dpspec.accounting.rdp import *
    from dpspec.accounting.responses import *
    from dpspec.accounting.shuffled import *
    from dpspec.accounting.tradeoff import *
    from dpspec.accounting.truncated_poisson import *

#: The public names of each module.
_NAMES = {
    "numerics": (
        "Boundary DIRECTIONS Direction Directions EPS Floats Interval LARGEST_EFFECT LEAST_TRIED NeverHoldsError "
        "OPPOSITE SMALLEST_EFFECT bisect bisect_by_margin crossing directions find_boundary finite inside "
        "one_direction positive round_down round_up smallest whole"
    ),
    "findings": "certified_lower certified_upper library_accuracy",
    "discrete_noise": "DISCRETE_SCALE dominating_noise_multiplier",
    "float_noise": "SMALLEST_TENSOR exceeded_by_float32 revealed_by_float32 revealed_by_schedule",
    "grid": "Bins Cells Pair TooLongError TruncatedPair",
    "laplace": "Laplace",
    "additive_noise": "LogConcaveNoise",
    "discrete": "Discrete",
    "densities": "log_binomial",
    "mixture": "Mixture",
    "double_mixture": "DoubleMixture SymmetricMixture",
    "truncated_poisson": "Revealed TruncatedPoisson",
    "displacement": "displacement_pair",
    "adaptive_clipping": "gradient_noise_multiplier joint_noise_multiplier real_divisor_pair",
    "allocation": "RandomAllocation UnevenAllocation",
    "shuffled": "largest_sum_pair",
    "profiles": "CLOSED ONE_STEP",
    "privacy_loss": "GRID PrivacyLoss group_curve",
    "rdp": (
        "Best BestEpsilon Conversion SELECTION_ORDERS Tries best_epsilon best_log_delta checked_orders "
        "composed_rdp drawn_cell_rdp epsilon_at_orders gaussian_rdp laplace_rdp log_delta_at_orders "
        "sampled_gaussian_integer_rdp sampled_gaussian_rdp sampled_laplace_rdp selection_rdp"
    ),
    "moments": "log_excess_power",
    "responses": (
        "ResponseMixture approximate_dp bounded_range bounded_range_rdp concentrated discrete_gaussian "
        "discrete_gaussian_rdp mixture_rdp_bounds randomized_response smallest_epsilon smallest_rho"
    ),
    "tradeoff": "GaussianTradeOff GdpFit LaplaceTradeOff Lines Polygon TradeOff fit_gdp",
    "curves": "TradeOffBounds tradeoff_bounds",
}
_HOME = {
    "gaussian": f"{__name__}.gaussian",
    **{name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()},
}

#: Tools for plugins and mechanisms that a user of the accountant does not need.
_TOOL_NAMES = (
    "CLOSED DIRECTIONS EPS Floats GRID LARGEST_EFFECT LEAST_TRIED Lines ONE_STEP OPPOSITE SELECTION_ORDERS "
    "SMALLEST_EFFECT SMALLEST_TENSOR Best Conversion DISCRETE_SCALE Revealed dominating_noise_multiplier "
    "exceeded_by_float32 revealed_by_float32 revealed_by_schedule Tries bisect bisect_by_margin checked_orders "
    "crossing directions drawn_cell_rdp finite inside library_accuracy log_binomial log_excess_power "
    "mixture_rdp_bounds one_direction positive real_divisor_pair smallest_epsilon sampled_gaussian_integer_rdp "
    "sampled_laplace_rdp smallest smallest_rho whole"
)
_TOOLS = frozenset(_TOOL_NAMES.split())

__all__ = [name for name in _HOME if name not in _TOOLS]

__getattr__, __dir__ = lazy_names(__name__, _HOME, (*__all__, *_TOOLS))
