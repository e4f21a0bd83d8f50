"""What to do about the rejected tests of a run: the advice of each cause once, without what follows from others.

Also what to do about an epsilon above the claim.
"""

from collections.abc import Collection, Sequence
from functools import partial

from dpspec.contract import Claim
from dpspec.decimals import exact, nearest
from dpspec.engine.schedule_privacy import Schedule, noise_for
from dpspec_recording.judge.bounds import ScheduleBounds
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.reported_checks import FURTHER_NORMS, RATE, SCALE
from dpspec_recording.outcomes.conditions import CONDITIONS
from dpspec_recording.outcomes.faults import Fault, RunTest, have
from dpspec_recording.probes import noise
from dpspec_recording.probes.batches import FILLED
from dpspec_recording.probes.parameters import LOADED, RETURNED
from dpspec_recording.probes.passes import OTHER_PARAMETERS

#: Faults whose tests reject any noise of another scale than declared, for every distribution.
_SCALED = (
    *(noise.QUIETEST_LAYER, noise.QUIETEST_LAYER_AT_A_STEP, noise.QUIET),
    *(noise.DIRECTIONS, noise.SHAPE, noise.ALONG, noise.FLAT, noise.UNEVEN),
)

#: Faults whose measured value is in declared standard deviations, so that noise of another scale has another one.
_IN_DEVIATIONS = (noise.EXTREME, noise.CENTERED)

#: The largest ratio of such a value to the one that noise of the measured scale has. Noise that is cut or centered far
#: enough for a wrong scale has a smaller one.
_FLUCTUATION = 4.0 / 3.0

#: Faults whose tests of products of steps also reject if all noise is larger than declared.
_LARGER = (noise.PAIRS, noise.DISTANCES, noise.ALIGNED)

#: Noise of few numbers has another standard deviation than their distribution, and no test that pools values over steps
#: averages it out. Noise of at most half the declared scale has more equal numbers than declared noise, such as the
#: noise of a sum that is reported after its division.
_FEW_NUMBERS, _MUCH_SMALLER = (noise.REPEATED, noise.POOLED), 0.5

#: Faults of the quietest part of the noise, and the variance, of the declared one, up to which this part has none: what
#: is left is rounding. Its zeros are equal numbers, and lower all averages.
_QUIETEST, _NO_NOISE = (noise.QUIETEST_LAYER, noise.QUIETEST_LAYER_AT_A_STEP, noise.QUIET), 1e-4

#: Faults whose tests also reject if a layer has less noise than the others.
_OF_A_LAYER = (noise.QUIET, noise.UNEVEN)

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


def advice_on(tests: Sequence[RunTest], rejected: Sequence[RunTest]) -> tuple[str, ...]:
    """The advice on some of the ``rejected`` tests of a run, each sentence once.

    A run with a rejected test has at least one advice: of a test, else of the conditions of all.
    """
    specific = {id(test): "" if _follows(test, rejected) else test.advice for test in rejected}
    if any(specific.values()):
        sentences = [specific[id(test)] for test in tests]
    else:
        sentences = [CONDITIONS[test.assumption].advice for test in tests]
    return tuple(dict.fromkeys(filter(None, sentences)))


def _follows(test: RunTest, rejected: Collection[RunTest]) -> bool:
    """Whether the fault of another rejected test explains this test's."""
    if test.name == OTHER_PARAMETERS.name:
        return have(rejected, (LOADED, RETURNED))
    if test.name == FURTHER_NORMS:
        return have(rejected, (FILLED,))
    if test.name == RATE:
        return any(bad.assumption == test.assumption and bad.is_exact for bad in rejected)
    scale = next((bad.check.measured for bad in rejected if bad.name == SCALE), None)
    quietest = [bad for bad in rejected if _is_of(bad, _QUIETEST) and (bad.check.measured or 0.0) <= _NO_NOISE]
    if quietest:  # a layer, or otherwise a coordinate, without noise
        is_layer = any(bad.name != noise.QUIET.name for bad in quietest)
        if _is_of(test, _QUIETEST):
            if test.name == noise.QUIETEST_LAYER_AT_A_STEP.name and have(rejected, (noise.WITHOUT_NOISE,)):
                return True
            return test not in quietest or (is_layer and test.name == noise.QUIET.name)
        return test.name == SCALE or _is_of(test, (*_SCALED, *_FEW_NUMBERS))
    if have(rejected, _FEW_NUMBERS) and not (1.0 if scale is None else scale) <= _MUCH_SMALLER:
        return test.name == SCALE or _is_of(test, (*_SCALED, *_IN_DEVIATIONS, noise.ALIGNED))
    if have(rejected, (noise.QUIETEST_LAYER,)) and not _is_equal(scale, rejected) and _is_of(test, _OF_A_LAYER):
        return True
    if test.name == SCALE:
        return not _is_equal(scale, rejected)
    if scale is None or not _is_equal(scale, rejected):
        return False
    if _is_of(test, _IN_DEVIATIONS):
        ratio = (test.check.measured or 0.0) / (scale * test.check.declared) if test.check.declared else 0.0
        return 1.0 / _FLUCTUATION <= ratio <= _FLUCTUATION
    if _is_of(test, _FEW_NUMBERS):
        return scale <= _MUCH_SMALLER
    return _is_of(test, _SCALED) or (scale > 1.0 and _is_of(test, _LARGER))


def _is_equal(scale: float | None, rejected: Collection[RunTest]) -> bool:
    """Whether noise of a wrong ``scale`` has it in all layers. Otherwise the quietest one is the fault."""
    layers = [bad.check.measured for bad in rejected if bad.name == noise.QUIETEST_LAYER.name]
    return bool(scale) and all(measured is None or measured >= 0.9 * (scale or 0.0) for measured in layers)


def _is_of(test: RunTest, faults: Collection[Fault]) -> bool:
    return any(test.name == fault.name for fault in faults)
