"""Checks that only a recording allows: of the accountant, parameter changes, clipped sums and the divisor."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from dpspec.contract import Check, Phase
from dpspec.decimals import nearest
from dpspec.engine.recorded import joined_checks, noise_checks
from dpspec.engine.recorded.joined_checks import none_found
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.recording.audited_steps import found_faults
from dpspec.recording.folder.facts import Facts
from dpspec.recording.step_replay.limits import LARGEST_MOVE, MOVE_ROUNDING, ROWS_ROUNDING
from dpspec.recording.sums.clip_limits import CLIP_ROUNDING
from dpspec.stats import gaussian_noise
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.measurement import CLIP_TOLERANCE, exactly

LIMITS = "norm to which gradients are clipped, over the norm by which their noise is scaled"
EDITED = "changes of the summed gradient outside of clipping"
ADDED = "batches with other gradients than the second backward pass left"
SUM_MOVED = "move of the clipped sum if a record is replaced in the replayed step, in clip norms"
REMOVED = "move of the clipped sum for each record that a replayed step omits or repeats, in clip norms"
FILLED = "empty batches that rand_on_empty replaced by a random row"
OTHERS_MOVED = (
    "change of other records' outputs, gradients or contributions if a record is replaced in the replayed step"
)
OTHER_PARAMETERS = "gradients computed at other parameters than the last step left"
UPDATES = "updates that differ from the recomputed update"
LOADED = "weights that load_state_dict put into the model between steps"
RETURNED = "weights of an earlier step that were put back between steps"
MOVED = "parameter changes outside the DP optimizer"
CHANGED = "changed model state without noise"
COUNT_NOISE = "noise of the count of unclipped records"
NEXT_NORM = "clip norms that do not follow from the noisy count before"
UNSCORED = "inserted canaries without a score"
MEDDLED = "updates with gradients other than the noisy sum"
DIVISOR = "divisor of the gradient"
_MORE_ROWS = "clipped norms in excess of the drawn records"
_WITHOUT = "parameter updates without noise"
_ORDERED = "assumed Poisson sampling, although the loader's batches are"
_UNSEEN = "steps without an observed batch"
_SEVERAL_BATCHES = "steps with several drawn batches"
_SEVERAL_UPDATES = "steps with more or fewer than one update"
_CONTRIBUTIONS = "steps with more or fewer contributions than drawn records"
_UNCLIPPED = "gradient sums without an observed clipping"
_LONGER = "steps with a sum longer than its clipped contributions allow"
_SILENT = "counts of unclipped records without noise"
_COUNTED = "steps counted by the accountant"
_TOLD_NOISE, _TOLD_RATE = "noise multiplier of the accountant", "sampling rate of the accountant"
_DECLARED = "that the spec declares"

#: A likely cause of a rejected test and its fix, by the beginning of the test's name.
_ADVICE = {
    EDITED: "Remove what writes to p.summed_grad: a factor on it is a factor on the sensitivity.",
    ADDED: "Give every term of the loss to make_private's criterion, and change no gradient before the step.",
    SUM_MOVED: "One record contributes more than the clip norm allows: look for several rows or backward passes for "
    "each record, losses that weigh records by the batch, and clipping of other values than a record's whole gradient.",
    REMOVED: "A step without some of its records, or with some twice, moves the sum further than their contributions: "
    "look for contributions above the clip norm, and for losses that depend on the number of records.",
    OTHERS_MOVED: "A record changes the results of other records: look for normalization, centering or attention over "
    "the batch, mixup, pairs or triplets of records, in-batch negatives, losses that divide by a total of the batch, "
    "scales from its longest record, clipping of a sum or a mean of several records, sums of earlier steps, forward "
    "passes that read the dataset (graphs, retrieval, class means), and layers with records in another order (Opacus' "
    "DPLSTM with enforce_sorted=False).",
    OTHER_PARAMETERS: "Do not move the parameters before the forward pass and back, as SAM does.",
    UPDATES: "Remove hooks from the optimizer, and change no parameter or state in its step.",
    LOADED: "Loaded weights may depend on the records without noise: a checkpoint that their loss chose, or an average "
    "with other weights. Load them before dpspec.record begins, and record what follows as a part, with resume=True.",
    RETURNED: "The training went back to weights that it had before: if a loss or an accuracy on the records chose "
    "them (the best of all), the choice has no noise and depends on each record. Go on from the last weights, or "
    "choose by public records and record what follows as a part, with resume=True.",
    MOVED: "A recording cannot distinguish a change that depends on no record (clamping, an average of weights) from "
    "training without noise: if it reads no record, make it after the recorded block; else remove it.",
    DIVISOR: "The optimizer's gradient is not the noisy sum over the declared divisor: leave scale_grad unchanged, and "
    "clip or scale the noisy gradient in the inner optimizer.",
    MEDDLED: "Gradients changed between the noise and the update: add nothing of the records there. A map of the noisy "
    "gradient alone (a mask, a projection, weight decay) and a public gradient are allowed: make them in the inner "
    "optimizer, on a copy of p.grad.",
    "largest clipped norm": "Longer gradients lose more than the certified epsilon.",
    noise_checks.OTHERS: "The optimizer's gradient must be (run.summed + run.noised) / divisor: noise is missing, or "
    "the sum was reported after the noise was added. Move weight decay and momentum into the optimizer.",
    _WITHOUT: "Add noise at each update, also for an empty batch: a step without noise releases its exact sum.",
    "chi-square of the quietest layer": "One tensor of the model got less noise than the others, or none: draw noise "
    "of the same standard deviation for every trained tensor, at each step.",
    COUNT_NOISE: "Leave add_noise and unclipped_num_std of the optimizer unchanged.",
    NEXT_NORM: "Let AdaClipDPOptimizer alone set its clip norm: others may depend on the records.",
    UNSCORED: "Call run.score after the block, in the training script, and keep canaries.npz in the folder.",
    _ORDERED: "Iterate over the loader of make_private, made with poisson_sampling=True (its default).",
    _UNSEEN: "Iterate the loader that make_private returned, instead of the original DataLoader, and give this loader "
    "to dpspec.record: batches of another loader have no known sampling rate. A custom loop reports each batch.",
    **noise_checks.ADVICE,
    **joined_checks.ADVICE,
    FILLED: "Leave rand_on_empty out of make_private: Opacus then steps with noise alone. If a record is drawn alone, "
    "the sum without it has the random row in its place, and moves by two clip norms.",
    "drawn records without a clipped norm": "Clip the gradient of each drawn record by itself, not a sum or a mean "
    "over several, and report its norm, of an unusable record 0. Step with each reported batch. If no step uses the "
    "batches of loader=, such as a loader for validation, give dpspec.record the loader that the training iterates.",
    _MORE_ROWS: "Steps have more rows of gradients than drawn records: two or more "
    "backward passes, or several rows of a record (views, evaluations). Make one row per record, and one backward pass "
    "on the sum of its losses.",
    _SEVERAL_BATCHES: "Skipping drawn batches changes the sampling distribution; joining batches "
    "changes the sampling rate.",
    _SEVERAL_UPDATES: "Make one update of the optimizer for each drawn batch: a second one from the same noisy sum, or "
    "an update without new noise, costs more than the accountant counts. A plain loop calls run.stepped() after each.",
    _CONTRIBUTIONS: "Report one norm for each record of the batch that run.sampled reported, of a record without "
    "gradient 0: missing or additional contributions have another sensitivity.",
    _UNCLIPPED: "Call backward() on the loss of make_private's criterion only: the gradient of a plain loss enters the "
    "sum without clipping. Create the criterion once, by make_private, and use it for every batch.",
    _LONGER: "The reported norms do not belong to the contributions of the reported sum: give run.clipped the norm of "
    "each record's whole gradient, over all layers together, after clipping. Clipping each coordinate or layer to the "
    "bound leaves longer gradients, whose norm is up to the root of their number times longer.",
    _SILENT: "Leave add_noise and unclipped_num_std of the optimizer unchanged: a count without noise shows a record.",
    _COUNTED: "Let the accountant count each update: keep the step hook of make_private, change nothing in its "
    "history, and use one engine for the optimizer and for get_epsilon.",
    _TOLD_NOISE: "The accountant counts another noise multiplier than the optimizer used: give both the same one, and "
    "change it by a scheduler of Opacus only.",
    _TOLD_RATE: "The accountant counts another sampling rate than the loader drew with: take both from one call of "
    "make_private, and change neither.",
}

#: What to do about a rejected test without advice by its name, by its assumption.
_GENERAL = {
    "steps": "The run made other steps than declared: declare the executed number of updates.",
    "sampling": "Batches were not drawn as declared: draw each record independently at each step, at the declared "
    "rate, and use every batch that is drawn; or account for the actual scheme.",
    "noise-scale": "The noise has another size than declared: its standard deviation is the noise multiplier times the "
    "clip norm, in the sum before it is divided.",
    "per-layer-noise": "A tensor got less noise than declared: draw noise of one standard deviation for all.",
    "independent-noise": f"Noise of steps, layers or coordinates depends on each other. {noise_checks.FRESH}",
    "noise-law": f"The noise is not Gaussian. {noise_checks.GAUSSIAN}",
    "clipping": "Clip the gradient of each record by itself to the declared clip norm, and change the sum by nothing "
    "but noise.",
    "unmixed-batches": "Let each record contribute one gradient that depends on no other record.",
    "secret-randomness": "Seed generators from the operating system, and publish no seed.",
    "update": "Let the optimizer step once for each noisy sum, with this sum over the divisor, and write to parameters "
    "by it alone.",
    "update-rule": "Let the optimizer of torch make its own update, without hooks that change it.",
    "gradient-parameters": "Compute gradients at the parameters that the last step left.",
    "model-state": "Train no buffer and no frozen parameter: they change without noise.",
    "data-independent-hyperparameters": "Take divisor, rate, clip norm and schedule from constants that no record "
    "changes.",
    "accounting": "Let the accountant count the steps, the noise and the rate that the optimizer and the loader used.",
    "canaries": "Keep the scores of all inserted canaries in the folder.",
    "nothing-unseen": "Canaries show more than the recorded steps allow: something trains on the records that was not "
    "recorded. Look for other training, before, within or after the block, and for code that writes to the model.",
}

#: Which attributes clip, and which one scales the noise.
_LIMITS = (
    "Opacus clips by max_grad_norms per layer, or by the model's max_grad_norm with ghost clipping. It scales noise by "
    "the optimizer's max_grad_norm, which alone its schedulers set. Set both, between steps and not between physical "
    "batches; with layers the optimizer's is the root of the sum of squares."
)

#: The scale of all noise and of the quietest layer, as ratios to the declared standard deviation.
_SCALE, _LAYER = "relative to the declared scale", "chi-square of the quietest layer"

#: Tests that reject any noise of another scale than declared, for every distribution.
_SCALED = (_LAYER, noise_checks.QUIET, noise_checks.DIRECTIONS, noise_checks.SHAPE, noise_checks.ALONG)

#: Tests of products of steps that also reject if all noise is larger than declared.
_LARGER = (noise_checks.PAIRS, noise_checks.DISTANCES)

_POISSON = "draw each record independently, as torch.rand(records) < rate does, or account for the actual batches."


def advice(check: Check, rejected: Collection[Check] = ()) -> str:
    """A likely cause of a rejected check and its fix; empty if another rejected check has the cause.

    A run with a rejected check has at least one advice: of the test's name, else of its assumption.

    Args:
        check: The rejected check.
        rejected: All rejected checks of the run. If all layers have noise of the same wrong scale, only the check of
            the scale gets advice, because the other checks of the noise follow from it.
    """
    specific = _specific_advice(check, rejected)
    explained = specific or any(_specific_advice(bad, rejected) for bad in rejected if bad is not check)
    return specific if explained else _GENERAL[check.assumption]


def _specific_advice(check: Check, rejected: Collection[Check]) -> str:
    """The advice of a test's name or values; empty without one, and if the check follows from another one."""
    if check.test.removesuffix(", exact").endswith(_DECLARED):
        return f"Train with the {check.test.partition(f' {_DECLARED}')[0]} of the spec, or declare the executed one."
    scale = next((c for c in rejected if c.assumption == "noise-scale" and c.note == _SCALE), None)
    if scale is not None and scale.measured:
        layers = [
            c.measured for c in rejected if c.test.startswith(_LAYER) and c.note.startswith("in each layer, least")
        ]
        if all(measured is None or measured >= 0.9 * scale.measured for measured in layers):
            if check is scale and any(bad.test.startswith(noise_checks.FEW_NUMBERS) for bad in rejected):
                return ""
            if check is scale:
                return (
                    f"All noise has {nearest(scale.measured, digits=3)} times the declared standard deviation: check "
                    "the noise multiplier, and that the clip norm multiplies it once."
                )
            if check.test.startswith(_SCALED) or (scale.measured > 1.0 and check.test.startswith(_LARGER)):
                return ""
    if check.test.startswith(OTHER_PARAMETERS) and any(
        name in bad.test for bad in rejected for name in (LOADED, RETURNED)
    ):
        return ""
    if check.test.startswith(_MORE_ROWS) and any(FILLED in bad.test for bad in rejected):
        return ""
    if check.test.startswith(LIMITS) and check.measured:
        return (
            f"Gradients are clipped to up to {nearest(check.measured, digits=3)} times the norm by which their noise "
            f"is scaled: the noise multiplier is smaller than declared. {_LIMITS}"
        )
    if check.test.startswith(CHANGED):
        return (
            f"Buffers, frozen or new parameters changed without noise: {check.note}. Running statistics of a layer, "
            "means and histories of losses are computed from records: remove them. State that reads no record, such as "
            "a step counter, belongs outside of the recorded model."
        )
    if check.test.startswith("variance of batch sizes") and check.measured == 0:
        return f"All batches have the same size, as torch.randperm(records)[:size] draws them: {_POISSON}"
    if check.test.startswith("variance of inclusions per record") and check.measured == 0:
        return f"All records were drawn equally often, as from a shuffled epoch: {_POISSON}"
    exact = any(bad.assumption == "sampling" and bad.test.endswith(", exact") for bad in rejected)
    if check.test == "binomial, two-sided" and not exact:  # else the rate follows from another fault
        return "Records are drawn at another rate than declared: account for the executed rate."
    return next((advice_text for name, advice_text in _ADVICE.items() if check.test.startswith(name)), "")


def own_checks(run: RecordedRun) -> Iterator[Check]:
    """All checks of a run with one step or more."""
    yield from _noise(run)
    yield from noise_checks.noise_checks(run)
    if run.end is not None and run.end.seeds is not None:
        note, (shared, public) = f"of {run.steps} steps", run.end.seeds
        yield none_found("independent-noise", noise_checks.SHARED_SEED, "measured", shared, note, None)
        yield none_found("secret-randomness", noise_checks.PUBLIC_SEED, "measured", public, note, None)
    yield from _moved(run)
    yield from _contributions(run)
    yield from _gradients(run)
    yield from _batches(run)
    yield from _accountant(run)
    yield from _divided(run)
    if run.header.canaries and run.end is not None:
        scored = run.scored is not None and run.folder.has_canaries
        missing = 0 if scored else run.header.canaries
        yield none_found("canaries", UNSCORED, "reported", missing, "", None)
    yield from joined_checks.rank_checks(run)
    yield from joined_checks.resume_checks(run)


def _noise(run: RecordedRun) -> Iterator[Check]:
    squares = run["noise_squares"]
    observed = np.isfinite(squares)
    if observed.any():
        noisy = run["noise_multiplier"] > 0.0
        without = observed & (squares == 0.0) & (noisy | np.isnan(run["noise_multiplier"]))
        count = int(without.sum())
        note = f"first at step {int(np.argmax(without)) + 1}" if count else "every update has noise"
        yield none_found("noise-scale", _WITHOUT, "reported", count, note)
    layer_squares = {
        name: (float(total), size * run.steps)
        for (name, size), total in zip(run.header.layers, run.layers, strict=True)
        if size
    }
    if run.scaled_squares is None or not layer_squares:
        return
    name, quiet = noise_tests.quietest(layer_squares)
    yield quiet.check("per-layer-noise", "reported", f"in each layer, least in {name}")
    least = {
        name: (float(value), size)
        for (name, size), value in zip(run.header.layers, run.quietest, strict=True)
        if size and np.isfinite(value)
    }
    if least:
        name, quiet = noise_tests.quietest(least, run.steps)
        quiet = replace(quiet, test=f"{quiet.test} at a step, in {name}")
        yield quiet.check("per-layer-noise", "reported", "in each layer, each step")


def _moved(run: RecordedRun) -> Iterator[Check]:
    internal, end, updates = run.internal, run.end, run["updates"]
    if np.isfinite(updates).any():
        wrong = int((updates != 1).sum())
        yield none_found("update", _SEVERAL_UPDATES, "measured", wrong, "one update a step")
    if internal is None:
        return
    if np.isfinite(internal.outside).any():
        moved = int((np.nan_to_num(internal.outside, nan=0.0) > 0.0).sum())
        moved += end is not None and end.outside > 0.0
        loaded = 0 if end is None else min(end.loaded, moved)
        returned = 0 if end is None else min(end.returned, moved - loaded)
        note = "between and after the recorded steps"
        yield none_found("update", MOVED, "measured", moved - loaded - returned, note)
        if loaded:
            yield none_found("update", LOADED, "measured", loaded, note)
        if returned:
            yield none_found("update", RETURNED, "measured", returned, note)
    if end is not None:
        names = [name.removeprefix("_module.") for name in (*end.buffers, *end.state)]
        note = ", ".join(names[:5]) or "buffers, frozen and new parameters, extra state"
        yield none_found("model-state", CHANGED, "measured", len(names), note, None)
    if end is not None and end.meddled is not None:
        changed = 0 if run.mapped_steps else end.meddled  # the assumption gradient-map asks about mapped ones
        yield _audited("update", MEDDLED, end, changed, "", _limit(end))
    yield from noise_checks.reported_noise_checks(run)


def _contributions(run: RecordedRun) -> Iterator[Check]:
    internal, (_, steps) = run.internal, run.contribution_gaps
    if not run.has_contributions and steps is not None:
        yield none_found("clipping", _CONTRIBUTIONS, "reported", steps, "", None)
    if internal is None:
        return
    if run.header.clipping == "ghost":
        unclipped = int((~np.isfinite(run["rows"]) & (np.nan_to_num(internal.sum_norm, nan=0.0) > 0.0)).sum())
        yield none_found("clipping", _UNCLIPPED, "reported", unclipped, "by the criterion of make_private")
    both = np.isfinite(internal.sum_norm) & np.isfinite(run["rows"])
    if both.any():
        clipped = run["rows"][both]
        if run.header.source == "own-loop":
            clipped = np.fmin(clipped, internal.reported[both])
        limit = clipped * (1.0 + CLIP_TOLERANCE) * (1.0 + run.norm_excess) + 1e-6
        beyond = int((internal.sum_norm[both] > limit).sum())
        yield none_found("clipping", _LONGER, "reported", beyond, "length of the sum", None)


def _gradients(run: RecordedRun) -> Iterator[Check]:
    end = run.end
    if end is None:
        return
    if end.sums is not None and end.sums[0]:
        compared, edited = end.sums
        yield _audited("clipping", EDITED, end, edited, f"compared {compared} times, ", 1e-4)
    if end.clip_limits is not None:
        larger, _, largest = end.clip_limits
        note = f"larger at {larger} of {run.steps} steps"
        yield exactly(LIMITS, larger == 0, 1.0, largest, CLIP_ROUNDING).check("clipping", "measured", note)
    if end.ghost is not None and end.ghost[0]:
        batches, _, changed = end.ghost
        yield _audited("clipping", ADDED, end, changed, f"{batches} batches, ", None)
    if end.adaptive is not None and end.adaptive[0]:
        yield from _adaptive_counts(end.adaptive)
    if end.replays is not None and end.replays[1] >= 1.0:
        tried, replayed, replacements, moved, of_outputs, of_gradients = end.replays
        note = f"{replacements:.0f} replacements at {replayed:.0f} of {tried:.0f} chosen steps"
        # the bound reduces the noise multipliers by what rounding adds to the norms
        rounding = (1.0 + MOVE_ROUNDING) * (1.0 + run.norm_excess) - 1.0
        yield _replayed(SUM_MOVED, LARGEST_MOVE, moved, LARGEST_MOVE * rounding, rounding, note)
        yield _replayed(OTHERS_MOVED, 0.0, max(of_outputs, of_gradients), ROWS_ROUNDING, ROWS_ROUNDING, note)
    if end.sizes is not None and end.sizes[3] > 0.0:
        steps, _, _, moved = end.sizes
        note = f"{steps} steps at the batch size of another one"
        rounding = (1.0 + MOVE_ROUNDING) * (1.0 + run.norm_excess) - 1.0
        yield _replayed(REMOVED, 1.0, moved, rounding, rounding, note)
    if end.passes is not None and end.passes[0]:
        passes, wrong, steps, without, compared = end.passes
        note = f"{passes} passes, at {steps - without} of {steps} steps"
        note = note if compared == passes else f"values at {compared} of {note}"
        yield _sampled("gradient-parameters", OTHER_PARAMETERS, wrong, note, _limit(end), whole=compared == passes)
    if end.updates is not None and end.updates[1]:
        steps, recomputed_steps, wrong, _ = end.updates
        note, whole = f"at {recomputed_steps} of {steps} steps", recomputed_steps == steps
        limit = 2.0**-16 if run.header.optimizer == "ReportedUpdates" else 2.0**-22
        yield _sampled("update-rule", UPDATES, wrong, note, limit if whole else _limit(end), whole=whole)


def _adaptive_counts(adaptive: tuple[int, float, float, int, int, float]) -> Iterator[Check]:
    """Whether adaptive clipping adds the declared noise to each count, and takes its clip norms from noisy counts."""
    steps, total, largest, silent, unexplained, _ = adaptive
    yield gaussian_noise.spread(total, steps, COUNT_NOISE).check("noise-scale", "measured", f"of all {steps} counts")
    single = gaussian_noise.spread(largest, 1, COUNT_NOISE, steps)
    yield single.check("noise-scale", "measured", f"at each step, of {steps}")
    yield none_found("noise-scale", _SILENT, "measured", silent, f"{steps} steps")
    yield none_found("data-independent-hyperparameters", NEXT_NORM, "measured", unexplained, f"{steps} steps")


def _audited(assumption: str, test: str, end: Facts, count: float, note: str, detectable: float | None) -> Check:
    """The check that a count over the audited steps is zero."""
    steps, audited, _ = end.audits
    return _sampled(assumption, test, count, f"{note}at {audited} of {steps} steps", detectable, whole=audited == steps)


def _limit(end: Facts) -> float:
    """The share of wrong steps that the audits find; 0 if they cover all."""
    steps, audited, share = end.audits
    return 0.0 if audited == steps else found_faults(steps, share) / steps


def _sampled(assumption: str, test: str, count: float, note: str, detectable: float | None, *, whole: bool) -> Check:
    """The check that a count over some steps is zero: it verifies the ``whole`` run, or tests its other steps."""
    check = none_found(assumption, test, "measured", count, note, detectable)
    return check if whole else replace(check, test=test)


def _replayed(test: str, declared: float, moved: float, rounding: float, detectable: float, note: str) -> Check:
    right = moved <= declared + rounding
    check = exactly(test, right, declared, moved, detectable).check("unmixed-batches", "measured", note)
    return replace(check, test=test)


def _batches(run: RecordedRun) -> Iterator[Check]:
    header = run.header
    assumed = header.accountant != "" or bool(np.isfinite(run["rate"]).any())
    if not header.is_poisson and header.scheme != "none" and assumed:
        yield exactly(f"{_ORDERED} {header.scheme}", False, 1, 0).check("sampling", "reported", "scheme")
        return
    if header.is_poisson or np.isfinite(run["rate"]).any():
        unseen = run.rates.count(None)
        yield none_found("sampling", _UNSEEN, "reported", unseen, "every step has a batch")
    if run.options.fills_empty:
        yield none_found("sampling", FILLED, "reported", int(run.filled.sum()), f"of {run.steps} batches", None)
    if header.is_poisson and np.isfinite(run["batches"]).any():
        several = int((np.nan_to_num(run["batches"], nan=1.0) != 1).sum())
        yield none_found("sampling", _SEVERAL_BATCHES, "reported", several, "one batch a step")


def _accountant(run: RecordedRun) -> Iterator[Check]:
    if not run.header.accountant:
        return
    counted = run["told_steps"] - run.header.told_before
    behind = int((counted != np.arange(1, run.steps + 1)).sum())
    last = float(counted[-1]) if np.isfinite(counted[-1]) else 0.0
    yield exactly(_COUNTED, behind == 0, run.steps, last).check("accounting", "reported", "steps")
    noise, rates = run["noise_multiplier"], _floats(run.rates)
    yield _equal("accounting", _TOLD_NOISE, noise, run["told_noise"])
    if (sampled := np.isfinite(rates)).any():
        rates, reported = (np.where(sampled, values, 0.0) for values in (rates, run["told_rate"]))
        yield _equal("accounting", _TOLD_RATE, rates, reported)


def _floats(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values])


def _equal(assumption: str, test: str, declared: Array, executed: Array) -> Check:
    """The check that values of steps are equal; it has the values of the first step with a difference."""
    wrong = ~np.isclose(executed, declared, rtol=1e-9, atol=0.0)
    step = int(np.argmax(wrong))
    values = (float(np.nan_to_num(values[step], nan=0.0)) for values in (declared, executed))
    note = f"first at step {step + 1}" if wrong.any() else "at all steps"
    return exactly(test, not wrong.any(), *values).check(assumption, "reported", note)


def _divided(run: RecordedRun) -> Iterator[Check]:
    declared, measured = run["divisor"], run["measured_divisor"]
    both = np.isfinite(declared) & np.isfinite(measured)
    if both.any():
        note, precision = "the configured divisor", run.divisor_precision
        with np.errstate(over="ignore"):  # an edited divisor may be as small as any number
            difference = np.abs(measured[both] / declared[both] - 1.0)
        most_different, mapped = int(np.argmax(difference)), int((difference > precision).sum())
        right = mapped == 0 or run.has_mapped_factor
        if mapped and right:
            note = f"{note} times a factor of the noisy gradient alone, {mapped} steps"
        values = float(declared[both][most_different]), float(measured[both][most_different])
        name = "data-independent-hyperparameters"
        yield exactly(DIVISOR, right, *values, precision).check(name, "reported", note)


def declared_tests(run: RecordedRun, phases: Sequence[Phase], records: int) -> Iterator[Check]:
    """Compare steps, noise, rate, clip norm and number of records with the phases; none without phases."""
    if not phases:
        return
    steps = sum(phase.steps for phase in phases)
    yield exactly(f"updates {_DECLARED}", steps == run.steps, steps, run.steps).check("steps", "reported", "recorded")
    compared: tuple[tuple[str, str, list[float], Sequence[float | None]], ...] = (
        ("noise-scale", "noise multiplier", [phase.noise_multiplier for phase in phases], run.noise_multipliers),
        ("sampling", "sampling rate", [phase.rate(records) for phase in phases], run.rates),
        ("clipping", "clip norm", [phase.clip_norm for phase in phases], run["clip_norm"].tolist()),
    )
    for assumption, name, values, executed in compared:
        declared = np.repeat(values, [min(phase.steps, run.steps) for phase in phases])[: run.steps]
        yield _equal(assumption, f"{name} {_DECLARED}", declared, _floats(executed)[: len(declared)])
    if run.header.records is not None:
        right, test = run.header.records == records, f"records {_DECLARED}"
        yield exactly(test, right, records, run.header.records).check("sampling", "reported", "of the loader's data")
