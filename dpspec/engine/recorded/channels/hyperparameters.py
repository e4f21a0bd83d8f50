"""The hyperparameters of a recorded training, and which of them the user declares public."""

from __future__ import annotations

#: Hyperparameters of the private sum and of the run.
_PRIVATE = ("rate", "divisor", "clip_norm", "noise_multiplier", "steps")

#: Options of torch's optimizers, under the names that users give them.
_OPTIONS = (
    *("learning_rate", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "alpha", "rho", "lambd"),
    *("parameters", "lr_decay", "momentum_decay", "etas", "step_sizes", "t0", "amsgrad", "centered", "maximize"),
)

#: All names that ``--public`` accepts.
NAMES = _PRIVATE + _OPTIONS
