"""What to do about the rejected tests of a run: the advice of each cause once, without what follows from others.

Also what to do about an epsilon above the claim.
"""

from collections.abc import Sequence
from functools import partial

from dpspec.contract import Claim
from dpspec.decimals import exact, nearest
from dpspec.engine.schedule_privacy import Schedule, noise_for
from dpspec_recording.judge.bounds import ScheduleBounds
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.outcomes.conditions import CONDITIONS
from dpspec_recording.outcomes.issue import Issue

#: Changes that lower the epsilon of a training with adaptive clip norms, and of others.
_RETRAINING_ADAPTIVE = "a larger unclipped_num_std or noise multiplier, a smaller rate or fewer steps, or flat clipping"
_RETRAINING = "a larger noise multiplier, a smaller rate or fewer steps (dpspec epsilon --target finds the noise)"


def retraining_of(schedule: ScheduleBounds, claims: Sequence[Claim]) -> str:
    """How to train with a smaller epsilon than this run has, with the noise multiplier that fits its failed claims."""
    if schedule.run.header.clipping == "adaptive":
        return f"train with {_RETRAINING_ADAPTIVE}"
    noise = _noise_for(schedule, claims)
    if noise is None:
        return f"train with {_RETRAINING}"
    present = nearest(schedule.run.configured_multipliers[0] or 0.0, digits=5)
    return f"train with a noise multiplier of {exact(noise)} (now {present}), or with a smaller rate or fewer steps"


def _noise_for(schedule: ScheduleBounds, claims: Sequence[Claim]) -> float | None:
    """The smallest noise multiplier, in the place of the only one, whose epsilon is within all claims.

    None if the run is within them, and if its Poisson samples have several rates or noise multipliers.
    """
    run = schedule.run
    steps = set(zip(run.configured_multipliers, run.rates, strict=True))
    claims = [claim for claim in claims if "proved" in claim.expect and claim.kind != "metric"]
    if len(steps) != 1 or not schedule.is_of_phases_alone or any(claim.kind != "approx-dp" for claim in claims):
        return None
    ((_, rate),) = steps
    fitting = list[float]()
    for claim in claims:
        epsilon, delta = claim.options["epsilon"], claim.options["delta"]
        interval = schedule.epsilon(claim.adjacency, delta, claim.group_size).interval
        if interval is not None and interval.upper > epsilon:
            try:
                fitting.append(noise_for(epsilon, partial(_at_noise, run, rate), claim.group_size, delta))
            except ValueError:  # an epsilon of 0, or more than the supported steps
                return None
    return max(fitting, default=None)


def _at_noise(run: RecordedRun, rate: float | None, noise: float) -> Schedule:
    """The steps of the run with another noise multiplier of the script, as the bounds count it."""
    return Schedule(steps=run.steps, rate=rate, noise=noise * run.counted_share)


def advice_on(tests: Sequence[Issue], rejected: Sequence[Issue]) -> tuple[str, ...]:
    """The advice on some of the ``rejected`` tests of a run, each sentence once.

    A run with a rejected test has at least one advice: of a test, else of the conditions of all.
    """
    explained = {name for bad in rejected for name in bad.explains}
    if any(bad.fix and bad.name not in explained for bad in rejected):
        sentences = ["" if test.name in explained else test.fix for test in tests]
    else:
        sentences = [CONDITIONS[test.condition].advice for test in tests]
    return tuple(dict.fromkeys(filter(None, sentences)))
