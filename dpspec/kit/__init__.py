"""Building blocks of mechanism plugins.

>>> from dpspec import kit
>>> scale = kit.number("Scale of the noise.", above=0)  # a key of the mechanism block
>>> scale["exclusiveMinimum"], scale["description"]
(0, 'Scale of the noise.')
>>> kit.chunks(5, together=2)  # trials that run together
((0, 1), (2, 3), (4,))

:class:`SimpleMechanism` audits with an upper bound on epsilon, :class:`AttackedMechanism` also with an attack on real
releases. The functions support mechanisms with a custom ``Audit``, and :mod:`dpspec.kit.scores_elsewhere` scores
computed by other programs. Importing this package imports neither numpy nor torch.
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
from dpspec.kit.trials import (
    canary_free_accuracy,
    chunks,
    coins_by_size,
    expected_checks,
    fair_coins,
    recorded,
    recorded_number,
    recorded_part,
    runs_together,
    scored_coins,
    select_inputs,
    shard_notes,
    training_bytes,
    training_job,
    training_seconds,
    whole_number,
)
from dpspec.kit.users import UsersAsGroups, draws_users
from dpspec.renames import old_names

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
    "canary_free_accuracy",
    "choice",
    "chunks",
    "claimed_deltas",
    "claimed_fprs",
    "coins",
    "coins_by_size",
    "columns_of",
    "did_you_mean",
    "dp_sgd_assumptions",
    "draws_users",
    "epsilon_as_run",
    "executed_scope",
    "expected_checks",
    "fair_coins",
    "flag",
    "integer",
    "lower_from",
    "missing_key",
    "noise_pair",
    "number",
    "other_scheme",
    "profile",
    "recorded",
    "recorded_number",
    "recorded_part",
    "requires_capabilities",
    "requires_data",
    "requires_model",
    "runs_together",
    "scored_coins",
    "select_inputs",
    "series",
    "shard_notes",
    "theorem_upper",
    "too_little_noise",
    "training_bytes",
    "training_job",
    "training_seconds",
    "unsupported",
    "whole_number",
]

#: Old names work for two minor versions.
__getattr__ = old_names(__name__)
