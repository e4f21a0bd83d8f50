"""Epsilon of the executed schedule of a recorded run, as recorded and with the measured noise and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpspec.contract import Check
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.costs.epsilons import ADD_REMOVE, Cost, bare_cost, ordered_cost, poisson_cost
from dpspec.engine.recorded.half_precision import norm_excess
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.recorded.run_sums import InternalSums, bare_layers, scaled_squares
from dpspec.engine.recorded.schedule import asked_multipliers, noise_multipliers, poisson_rates
from dpspec.stats.conformance import table


def cost_of(run: RecordedRun, internal: InternalSums | None, adjacency: str, delta: float, size: int) -> Cost:
    """Epsilon at ``delta`` for groups of ``size`` by the executed schedule; a reason if nothing bounds it."""
    noise = noise_multipliers(run)
    known = [sigma for sigma in noise if sigma is not None]
    if len(known) < len(noise):
        what = "what the noise multiplier is, or whether there was noise, was not seen"
        return Cost(interval=None, reason=f"{what} at {len(noise) - len(known)} of {len(noise)} steps")
    return _bounded(run, internal, known, adjacency, delta, size)


def _bounded(
    run: RecordedRun,
    internal: InternalSums | None,
    noise: Sequence[float],
    adjacency: str,
    delta: float,
    size: int,
) -> Cost:
    """The cost of the run's steps with these noise multipliers."""
    if run.header.clipping == "adaptive":
        reason = "Opacus' adaptive clipping divides its noisy count by the real batch size, which no accountant covers"
        return Cost(interval=None, reason=reason)
    bare = bare_cost(noise)
    if bare is not None:
        return bare
    quiet = bare_layers(run)
    if quiet:
        named = ", ".join(quiet[:3]) + (f" and {len(quiet) - 3} more" if len(quiet) > 3 else "")
        reason = f"some updates of {named} got no noise: nothing bounds what these parameters show"
        return Cost(interval=None, reason=reason)
    rates = [rate for rate in poisson_rates(run) if rate is not None]
    if len(rates) == len(noise):
        return poisson_cost(noise, rates, delta, size)
    ordered = run.header.scheme in ("shuffled", "sequential")
    if not ordered:
        told = {"none": "were not told of", "poisson": "were not seen at every step"}
        how = told.get(run.header.scheme, f"are {run.header.scheme} ({run.header.sampler})")
        return Cost(interval=None, reason=f"how likely batches are is not known: they {how}")
    if adjacency == ADD_REMOVE:
        reason = f"{run.header.scheme} batches all change when a record is added: nothing bounds that"
        return Cost(interval=None, reason=reason)
    sampling = internal.sampling if internal is not None else None
    if internal is None or internal.most_often is None or sampling is None or sampling.repeats:
        return Cost(interval=None, reason="in how many batches a record is was not seen, or some are in one twice")
    return ordered_cost(noise, internal.most_often, delta, size)


def measured_epsilon(
    run: RecordedRun, internal: InternalSums | None, checks: Sequence[Check], adjacency: str, delta: float
) -> float | None:
    """Epsilon of one record with the measured noise of each step over the largest norm; None if options hold.

    A step whose noise is within four standard deviations of the expected size counts as what its options ask for.
    """
    longest = 1.0
    if internal is not None:
        longest = max([1.0, *(v for v in internal.largest.tolist() if math.isfinite(v))])
    noise_off = any(c.assumption == "noise-scale" and rejected(c, len(checks)) for c in checks)
    scaled, asked = scaled_squares(run), asked_multipliers(run)
    known = [sigma for sigma in asked if sigma is not None]
    count = run.header.parameters
    longer = longest > (1.0 + table.CLIP_TOLERANCE) * (1.0 + norm_excess(run))
    if not (noise_off or longer) or scaled is None or len(known) < len(asked) or not count:
        return None
    sizes = [math.sqrt(float(one) / count) for one in scaled]
    likely = [size if abs(size - 1.0) > 4.0 / math.sqrt(2.0 * count) else 1.0 for size in sizes]
    noise = [float(f"{sigma * size / longest:.3g}") for sigma, size in zip(known, likely, strict=True)]
    cost = _bounded(run, internal, noise, adjacency, delta, 1)
    return None if cost.interval is None else cost.interval.upper
