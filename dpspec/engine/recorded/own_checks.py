"""Checks that only a recording allows: what the accountant was told, who moved the parameters, what was divided by."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from dpspec.contract import Check
from dpspec.engine.recorded.channels.gradient_checks import ADVICE, gradient_checks
from dpspec.engine.recorded.half_precision import norm_excess, sums_type
from dpspec.engine.recorded.noise_channel import ADVICE as NOISE_ADVICE
from dpspec.engine.recorded.noise_channel import (
    DIRECTIONS,
    NORMS,
    QUIET,
    ROWS,
    SHAPE,
    SHIFTED,
    STEPS,
    SUMS,
    WINDOWS,
    noise_checks,
)
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.engine.recorded.run_sums import InternalSums, scaled_squares, uncounted
from dpspec.engine.recorded.schedule import poisson_rates
from dpspec.engine.recorded.told_noise import NOT_GOT, OTHERS, told_noise
from dpspec.engine.results.decimals import nearest
from dpspec.stats.conformance import noise_size
from dpspec.stats.conformance.measurement import check, exact
from dpspec.stats.conformance.table import CLIP_TOLERANCE

#: Float32 quotients of norms are right to this.
_DIVIDED = 1e-4

#: Those of sums in half precision to this.
_DIVIDED_HALF = 2.0**-6

MOVED = "parameter changes outside the DP optimizer"
CHANGED = "changed model state without noise"
UNSCORED = "inserted canaries without a score"
MEDDLED = "updates with gradients other than the noisy sum"
_WITHOUT = "parameter updates without noise"
_ORDERED = "assumed Poisson sampling; the loader's batches are"

#: A likely cause and what to do about it, by the beginning of a test's name.
_ADVICE = {
    **ADVICE,
    MOVED: "If the change does not depend on records (clamping, an average of weights, a loaded checkpoint), it is "
    "post-processing without privacy loss. A recording cannot distinguish it from training without noise: make the "
    "change after the recorded block, or on a copy of the model.",
    CHANGED: "If the state does not depend on records (a step counter, an average of weights), it has no privacy loss. "
    "A recording cannot distinguish it from state computed from records: keep it outside the recorded model.",
    MEDDLED: "If the change does not depend on records (clipping the noisy gradient again, weight decay), it has no "
    "privacy loss, but a recording cannot verify that: make it in the inner optimizer.",
    "largest clipped norm": "Gradients longer than the clip norm lose more than the accounted epsilon: see the "
    "estimate with the measured norms.",
    NOT_GOT: "The noise passed to run.noised is not in the gradients of the optimizer's step.",
    OTHERS: "The optimizer's gradient must be (run.summed + run.noised) / divisor: noise is missing, the sum was "
    "reported after the noise was added, or the gradient contains something else. Move operations that do not depend "
    "on records (weight decay, momentum, a second clipping) into the optimizer.",
    _WITHOUT: "Add noise at each update, also for an empty batch: a step without noise releases its exact sum.",
    "chi-square of the quietest layer": "One tensor of the model got less noise than the others, or none: draw noise "
    "of the same standard deviation for every trained tensor, at each step.",
    UNSCORED: "Call run.score after the block, in the training script, and keep canaries.npz in the folder: the result "
    "of an inserted attack must be reported, whatever it is.",
    _ORDERED: "Iterate over the loader that make_private returned, made with poisson_sampling=True (its default), or "
    "have the accountant count a batch as it is.",
    **NOISE_ADVICE,
    "steps with several drawn batches": "Skipping drawn batches changes the sampling distribution; joining batches "
    "changes the sampling rate.",
}


#: The scale of all noise, and that of the quietest layer; both as a ratio to the declared standard deviation.
_SCALE, _LAYER = "relative to the declared scale", "chi-square of the quietest layer"

#: Tests that reject any noise of another scale than declared, whatever its distribution.
_SCALED = (_LAYER, QUIET, SHIFTED, ROWS, STEPS, DIRECTIONS, WINDOWS, SHAPE, SUMS, NORMS)

_POISSON = "draw each record independently, as torch.rand(records) < rate does, or account for the batches as they are."


def advice(found: Check, rejected: Collection[Check] = ()) -> str:
    """A likely cause of a rejected check and what to do; empty if its name says it.

    Args:
        found: The rejected check.
        rejected: All rejected checks of the run. If all layers have noise of the same wrong scale, only the check of
            the scale gets advice, because the other checks of the noise follow from it.
    """
    scale = next((one for one in rejected if one.assumption == "noise-scale" and one.note == _SCALE), None)
    if scale is not None and scale.measured and _alike(scale.measured, rejected):
        if found is scale:
            return (
                f"All noise has {nearest(scale.measured, digits=3)} times the declared standard deviation: check the "
                "noise multiplier, and that the clip norm multiplies it once."
            )
        if found.test.startswith(_SCALED):
            return ""
    if found.test.startswith("variance of batch sizes") and found.measured == 0:
        return f"All batches have the same size, as torch.randperm(records)[:size] draws them: {_POISSON}"
    if found.test.startswith("variance of inclusions per record") and found.measured == 0:
        return f"All records were drawn equally often, as from a shuffled epoch: {_POISSON}"
    return next((words for name, words in _ADVICE.items() if found.test.startswith(name)), "")


def _alike(scale: float, rejected: Collection[Check]) -> bool:
    """Whether the quietest layer has at least 90 % of the noise of all layers."""
    layers = [
        one.measured for one in rejected if one.test.startswith(_LAYER) and one.note.startswith("in each layer, least")
    ]
    return all(measured is None or measured >= 0.9 * scale for measured in layers)


def own_checks(run: RecordedRun, internal: InternalSums | None) -> Iterator[Check]:
    """All of them, as far as what they need was seen."""
    if run.steps == 0:
        return
    yield from _noise(run)
    yield from noise_checks(run)
    yield from _moved(run, internal)
    yield from _contributions(run, internal)
    yield from gradient_checks(run)
    yield from _batches(run)
    yield from _told(run)
    yield from _divided(run)
    yield from _scored(run)


def _noise(run: RecordedRun) -> Iterator[Check]:
    squares = run["noise_squares"]
    seen = np.isfinite(squares)
    if seen.any():
        asked = run["noise_multiplier"] > 0.0
        without = seen & (squares == 0.0) & (asked | np.isnan(run["noise_multiplier"]))
        count = int(without.sum())
        note = f"first at step {int(np.argmax(without)) + 1}" if count else "every update has noise"
        yield exact("noise-scale", _WITHOUT, "reported", count == 0, 0, count, note)
    parts = {
        name: (float(total), size * run.steps)
        for (name, size), total in zip(run.header.layers, run.layers, strict=True)
        if size
    }
    if scaled_squares(run) is None or not parts:
        return
    name, quiet = noise_size.quietest(parts)
    yield check("noise-isotropy", quiet, "reported", f"in each layer, least in {name}")
    least = {
        name: (float(value), size)
        for (name, size), value in zip(run.header.layers, run.quietest, strict=True)
        if size and np.isfinite(value)
    }
    if least:
        name, quiet = noise_size.quietest(least, run.steps)
        quiet = replace(quiet, test=f"{quiet.test} at a step, in {name}")
        yield check("noise-isotropy", quiet, "reported", "in each layer, each step")


def _moved(run: RecordedRun, internal: InternalSums | None) -> Iterator[Check]:
    updates = run["updates"]
    if np.isfinite(updates).any():
        wrong = int((updates != 1).sum())
        test = "steps with more or fewer than one update"
        yield exact("update", test, "measured", wrong == 0, 0, wrong, "one update a step")
    if internal is None:
        return
    outside = internal.outside
    if np.isfinite(outside).any():
        moved = int((np.nan_to_num(outside, nan=0.0) > 0.0).sum())
        after = run.said("outside")
        moved += isinstance(after, int | float) and not isinstance(after, bool) and after > 0.0
        test = MOVED
        yield exact("update", test, "measured", moved == 0, 0, moved, "between and after the recorded steps")
    buffers = run.said("buffers")
    if isinstance(buffers, list):
        test = CHANGED
        names = [*run.names("buffers"), *run.names("state")]
        moved = max(len(names), len(buffers))
        yield exact(
            "model-state",
            test,
            "measured",
            moved == 0,
            0,
            moved,
            ", ".join(names[:5]) if names else "buffers, frozen and new parameters, extra state",
            detectable=None,
        )
    meddled = run.said("meddled")
    if type(meddled) is int:
        test = MEDDLED
        yield exact("update", test, "measured", meddled == 0, 0, meddled, "between noise and update", detectable=None)
    yield from told_noise(run)
    seen = np.isfinite(internal.update) & (run["learning_rate"] > 1e-6) & (run["noise_squares"] > 0.0)
    if seen.any():
        still = int((internal.update[seen] == 0.0).sum())
        test = "noisy updates without a parameter change"
        yield exact("update", test, "measured", still == 0, 0, still, "effect of noisy updates", detectable=None)
    vain = run.said("noised_without_update")
    if isinstance(vain, bool):
        test = "noisy gradients without an update"
        yield exact("steps", test, "reported", not vain, 0, float(vain), "at the end")


def _contributions(run: RecordedRun, internal: InternalSums | None) -> Iterator[Check]:
    unseen = internal is None or not np.isfinite(internal.largest).any()
    missing, astray = uncounted(run)
    if unseen and missing is not None and astray is not None:
        test = "drawn records without a separate contribution"
        yield exact("clipping", test, "reported", missing == 0, 0, missing, detectable=None)
        test = "steps with more or fewer contributions than drawn records"
        yield exact("clipping", test, "reported", astray == 0, 0, astray, detectable=None)
    if internal is None:
        return
    if run.header.clipping == "ghost":
        unclipped = int((~np.isfinite(run["rows"]) & (np.nan_to_num(internal.sum_norm, nan=0.0) > 0.0)).sum())
        test = "gradient sums without an observed clipping"
        yield exact("clipping", test, "reported", unclipped == 0, 0, unclipped, "by the criterion of make_private")
    both = np.isfinite(internal.sum_norm) & np.isfinite(run["rows"])
    if both.any():
        clipped = run["rows"][both]
        if run.header.source == "own-loop":
            clipped = np.fmin(clipped, internal.reported[both])
        room = clipped * (1.0 + CLIP_TOLERANCE) * (1.0 + norm_excess(run)) + 1e-6
        beyond = int((internal.sum_norm[both] > room).sum())
        test = "steps with a sum longer than its clipped contributions allow"
        yield exact("clipping", test, "reported", beyond == 0, 0, beyond, "length of the sum", detectable=None)


def _batches(run: RecordedRun) -> Iterator[Check]:
    header = run.header
    assumed = header.accountant != "" or bool(np.isfinite(run["rate"]).any())
    if header.scheme not in ("poisson", "none") and assumed:
        test = f"{_ORDERED} {header.scheme}"
        yield exact("sampling", test, "reported", False, 1, 0, "scheme")
        return
    if header.scheme == "poisson" or np.isfinite(run["rate"]).any():
        unseen = sum(rate is None for rate in poisson_rates(run))
        test = "steps without an observed batch"
        yield exact("sampling", test, "reported", unseen == 0, 0, unseen, "every step has a batch")
    if header.scheme == "poisson" and np.isfinite(run["batches"]).any():
        several = int((np.nan_to_num(run["batches"], nan=1.0) != 1).sum())
        test = "steps with several drawn batches"
        yield exact("sampling", test, "reported", several == 0, 0, several, "one batch a step")


def _told(run: RecordedRun) -> Iterator[Check]:
    if not run.header.accountant:
        return
    told = run["told_steps"] - run.header.told_before
    behind = int((told != np.arange(1, run.steps + 1)).sum())
    counted = float(told[-1]) if np.isfinite(told[-1]) else 0.0
    test = "steps counted by the accountant"
    yield exact("accounting", test, "reported", behind == 0, run.steps, counted, "steps")
    asked, noise = run["noise_multiplier"], run["told_noise"]
    wrong = ~np.isclose(noise, asked, rtol=1e-9, atol=0.0, equal_nan=False)
    yield _reported("noise multiplier of the accountant", wrong, asked, noise, "noise")
    rates = np.array([np.nan if rate is None else rate for rate in poisson_rates(run)])
    if np.isfinite(rates).any():
        wrong = ~np.isclose(run["told_rate"], rates, rtol=1e-9, atol=0.0) & np.isfinite(rates)
        yield _reported("sampling rate of the accountant", wrong, rates, run["told_rate"], "rate")


def _reported(test: str, wrong: Array, ran: Array, told: Array, note: str) -> Check:
    """Compare the accountant's values with those of the run, at the first step with a difference."""
    at = int(np.argmax(wrong)) if wrong.any() else 0
    declared, seen = (float(np.nan_to_num(one[at], nan=0.0)) for one in (ran, told))
    return exact("accounting", test, "reported", not wrong.any(), declared, seen, note)


def _divided(run: RecordedRun) -> Iterator[Check]:
    declared, measured = run["divisor"], run["measured_divisor"]
    both = np.isfinite(declared) & np.isfinite(measured)
    if both.any():
        apart = np.abs(measured[both] / declared[both] - 1.0)
        at = int(np.argmax(apart))
        exact_to = _DIVIDED_HALF if sums_type(run) else _DIVIDED
        right = bool(apart[at] <= exact_to)
        values = float(declared[both][at]), float(measured[both][at])
        test = "divisor of the gradient"
        yield exact("public-constants", test, "reported", right, *values, "what the options say", detectable=exact_to)


def _scored(run: RecordedRun) -> Iterator[Check]:
    """Whether the attack that was planted was made and is there; nothing where nothing was planted, or no end came."""
    planted = run.header.canaries
    if planted and run.end is not None:
        there = run.scored is not None and run.folder.has_canaries
        yield exact("canaries", UNSCORED, "reported", there, 0, 0 if there else planted, detectable=None)
