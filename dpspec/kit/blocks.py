"""Blocks of a mechanism: keys of its schema, diagnostics, assumptions, findings, and classes to derive it from.

>>> from dpspec.kit import blocks
>>> scale = blocks.number("Scale of the noise.", above=0)  # a key of the mechanism block
>>> scale["exclusiveMinimum"], scale["description"]
(0, 'Scale of the noise.')

:class:`SimpleMechanism` audits with an upper bound on epsilon, :class:`AttackedMechanism` also with an attack on real
releases.
"""

from dpspec.contract.fragments import (
    array,
    block,
    choice,
    flag,
    integer,
    number,
    requires_capabilities,
    requires_data,
    requires_model,
)
from dpspec.kit.findings import (
    ASSUMPTIONS,
    COINS,
    CURVE_DELTAS,
    DEFAULT_DELTA,
    PROFILE_DELTAS,
    bad_value,
    claimed_deltas,
    claimed_fprs,
    coins,
    columns_of,
    did_you_mean,
    dp_sgd_assumptions,
    epsilon_as_run,
    executed_scope,
    lower_from,
    missing_key,
    other_scheme,
    profile,
    series,
    theorem_upper,
    too_little_noise,
    unsupported,
)
from dpspec.kit.mechanisms import AttackedMechanism, Options, Releases, SimpleMechanism
from dpspec.kit.noise import noise_pair
from dpspec.kit.users import UsersAsGroups, draws_users

__all__ = [
    "ASSUMPTIONS",
    "COINS",
    "CURVE_DELTAS",
    "DEFAULT_DELTA",
    "PROFILE_DELTAS",
    "AttackedMechanism",
    "Options",
    "Releases",
    "SimpleMechanism",
    "UsersAsGroups",
    "array",
    "bad_value",
    "block",
    "choice",
    "claimed_deltas",
    "claimed_fprs",
    "coins",
    "columns_of",
    "did_you_mean",
    "dp_sgd_assumptions",
    "draws_users",
    "epsilon_as_run",
    "executed_scope",
    "flag",
    "integer",
    "lower_from",
    "missing_key",
    "noise_pair",
    "number",
    "other_scheme",
    "profile",
    "requires_capabilities",
    "requires_data",
    "requires_model",
    "series",
    "theorem_upper",
    "too_little_noise",
    "unsupported",
]
