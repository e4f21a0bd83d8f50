"""What the plugin offers, in numpy."""

import numpy as np

from dpspec.contract.attacks import Records


def upside_down(asked):
    """``count`` training records x as (1 - share) x + share (low + high - x), with their labels."""
    chosen = np.random.default_rng(asked.seed).integers(0, len(asked.x), size=asked.count)
    x, share = asked.x[chosen], asked.options["share"]
    return Records((1.0 - share) * x + share * (asked.x.min() + asked.x.max() - x), asked.y[chosen])


def around(observed):
    """Mean of how the loss fell at some points around each record, in units of the noise, which many runs need."""
    x, rng, points = observed.canaries.x, np.random.default_rng(0), observed.options["points"]
    fell = np.zeros(len(x))
    for _ in range(points):
        near = x + 0.05 * rng.standard_normal(x.shape).astype(np.float32)
        before, after = observed.ask(Records(near, observed.canaries.y))
        fell += (np.logaddexp(0.0, -before) - np.logaddexp(0.0, -after)) / points
    return np.arcsinh(fell / observed.unit)
