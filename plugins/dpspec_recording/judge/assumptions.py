"""Assumptions of a bound on a recorded run, each by name with the status that the recording supports."""

import math
import re
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from dpspec.contract import Assumption
from dpspec.contract.findings import AssumptionStatus
from dpspec.results.honest_script import HONEST_SCRIPT
from dpspec.text import several
from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.joined_folder import Comparison
from dpspec_recording.folder.weights import ReleasedModel
from dpspec_recording.judge.bounds import ADD_REMOVE
from dpspec_recording.judge.conditions import NOTHING_ELSE, TEXTS, stated
from dpspec_recording.judge.joined_checks import joined_parts
from dpspec_recording.judge.noise_checks import (
    why_noise_seems_cut,
    why_noise_unconfirmed,
    why_repeats_untested,
    why_squares_vary,
)
from dpspec_recording.judge.recorded_run import RecordedRun, follow

#: The assumption of runs in which not every contribution was observed, such as those with ghost clipping.
PER_RECORD_CLIPPING = "per-record-clipping"

#: The model of a run whose parameters are reported as arrays.
ARRAYS = "ArrayModel"

#: Relative difference up to which divisors that the recorder fits to gradients are equal.
_FITTED = 1e-2

#: The same for float32 sums and gradients: divisors are stored with six digits.
_FITTED_EXACTLY = 2e-5

#: Length of the rounding of gradients, in standard deviations of the noise, that float32 does not reach below 10^9
#: coordinates and bfloat16 does with 20.
_LEAST_HIDDEN = 0.25

#: Difference of powers of the batch size that rounding explains.
_SAME_POWER = 0.02

#: Name of a class.
_CLASS = re.compile(r"[A-Za-z_][\w.<>]{0,99}", re.ASCII)


class RunAssumptions:
    """The assumptions of the bounds on a run. Two depend on the bound's adjacency or group size, the others on neither.

    computed: why a constant is computed from the records, or empty. undeclared: the constants that a script may have
    computed from the number of records and the user does not declare public, or empty. reduction: the assumption
    ``loss-reduction``, if the run needs it.
    """

    def __init__(self, run: RecordedRun, public: Collection[str], released: ReleasedModel | None = None) -> None:
        """released: the model to be released, None if the user names none."""
        self._run, self._public = run, public
        self.computed = _computed_from_records(run)
        self._maybe_computed, self.undeclared = _maybe_computed(run), _maybe_computed(run, public)
        self.reduction = _loss_reduction(run)
        self._first = tuple(_first_assumptions(run, public, released))
        self._last = (*_records(run, self.reduction), *((stated("order"),) if run.header.in_epochs else ()))

    def of(self, adjacency: str, group_size: int) -> tuple[Assumption, ...]:
        """The assumptions of a bound in this adjacency for groups of this size."""
        repeated = _repeated_records(self._run.header.repeats, group_size)
        return (self._constants(adjacency), *self._first, *repeated, *self._last)

    def _constants(self, adjacency: str) -> Assumption:
        run, public, maybe = self._run, self._public, self._maybe_computed
        text = TEXTS["data-independent-hyperparameters"]
        status: AssumptionStatus = "declared"
        doubts = list(run.options.doubts(public, private=True))
        divisors = run["divisor"][np.isfinite(run["divisor"])]
        low, high = divisors.min(initial=np.inf), divisors.max(initial=0.0)
        if "divisor" not in public and high > (1.0 + _fitted_precision(run)) * low:
            doubts.append(
                f"the divisor of gradients is from {low:.6g} to {high:.6g}: divide each step's "
                "gradient by one constant, and do not scale or clip the noisy gradient by its norm"
            )
        if self.computed:
            status, text = "false", f"{text}, but {self.computed}"
        elif doubts:
            status, text = "unchecked", f"{text}, but {'; '.join(doubts)}"
        elif adjacency != ADD_REMOVE and maybe:
            text += f" except by their number, which is public: {maybe}"
        elif self.undeclared:
            status, text = "unchecked", f"{text}, but {self.undeclared}"
        else:
            text += (
                f": the user declares {', '.join(sorted(public))} public" if public else ": one run does not show it"
            )
            text += f", although {maybe}" if maybe else ""
        if calling := ", ".join(run.options.calling):
            text += f". {calling} calls functions of the script, which are assumed to read no record"
        return stated("data-independent-hyperparameters", status=status, text=text)


def _first_assumptions(
    run: RecordedRun, public: Collection[str], released: ReleasedModel | None
) -> Iterator[Assumption]:
    header, own_loop = run.header, run.header.source == "own-loop"
    sampled = header.is_poisson or np.isfinite(run["rate"]).any()
    if sampled:
        yield _sampling(run)
    if sampled or header.in_epochs:
        yield from _unused_batches(run)
    yield from _clipping(run)
    if rows := run.further_rows:
        text = f"; every step has {several(rows, 'row')} beyond its records: if public, --assume public-rows"
        yield stated("public-rows", text, "unchecked")
    if run.sums_type:
        text = f"; sums in {run.sums_type} have no error bound: use float32, with torch's matmul precision 'highest'"
        yield stated("precision", text, "unchecked")
    by_torch = "; it comes from torch's generator, not a cryptographic one, by default"
    if doubt := why_noise_seems_cut(run) or why_squares_vary(run) or why_repeats_untested(run):
        yield stated("noise-law", f", but {doubt}", "unchecked")
    else:
        yield stated("noise-law", "" if own_loop else by_torch)
    yield stated("secret-randomness")
    yield stated(HONEST_SCRIPT)
    if own_loop:
        doubt = why_noise_unconfirmed(run)
        text = f"; the recording does not confirm the reported noise in the gradients: {doubt}" if doubt else ""
        yield stated("loop-reports", text, "unchecked" if doubt else "declared")
    if header.world:
        yield _joined_ranks(run)
    if header.shards and run.end is not None and run.end.noise is None:
        yield stated("noise", status="unchecked", text="the noise of a rank was not observed")
    if run.resumed is not None:
        yield joined_parts(run.resumed)
    yield from _update_rule(run, public)
    yield from _gradient_map(run)
    yield from _model_state(run)
    yield from _released_model(run, released)
    yield stated("one-record")
    yield _unmixed_batches(run)


def _computed_from_records(run: RecordedRun) -> str:
    observed = np.isfinite(run["divisor"]) & np.isfinite(run["rows"])
    sizes = run["rows"][observed]
    if len(np.unique(sizes)) > 1 and np.allclose(run["divisor"][observed], np.maximum(sizes, 1.0), rtol=1e-5):
        return "the divisor is the number of records in each batch"
    rates = np.nan_to_num(run["rate"])
    for name in ("divisor", "learning_rate", "clip_norm", "noise_multiplier"):
        observed = np.isfinite(run[name]) & np.isfinite(run["rows"])
        for rate in np.unique(rates[observed]):
            with_rate = observed & (rates == rate)
            if follow(run[name][with_rate], run["rows"][with_rate]):
                return f"the {name.replace('_', ' ')} follows the number of records in each batch"
    return ""


def _maybe_computed(run: RecordedRun, public: Collection[str] = ()) -> str:
    """The constants that equal those that a script computes from the number of records; empty if none does.

    ``make_private`` samples at one over the number of batches, and divides by the floor of the records times that rate.
    Custom loops also divide by this product, or round it. A user may have chosen the same number: names in ``public``
    are not reported.
    """
    header, rates = run.header, np.unique(run["rate"][np.isfinite(run["rate"])])
    rate = header.rate if header.source == "opacus" else float(rates[0]) if len(rates) == 1 else None
    if header.records is None or rate is None or rate <= 0.0:
        return ""
    computed_constants = []
    batches = round(1.0 / rate)
    if header.source == "opacus" and abs(batches * rate - 1.0) < 1e-9 and "rate" not in public:
        computed_constants.append(f"the rate {rate:.4g} may be 1 over the number of batches")
    mean_size = header.records * rate
    divisors = run["divisor"][np.isfinite(run["divisor"])]
    if header.expected_batch_size is not None:
        divisors = np.append(divisors, header.expected_batch_size)
    is_fitted = header.source != "opacus"
    if run.has_mapped_factor:  # a script that divides the sum itself
        divisors, is_fitted = run["measured_divisor"][np.isfinite(run["measured_divisor"])], True
    products = ((math.floor(mean_size), "the floor of "), (mean_size, ""), (math.ceil(mean_size), "the ceiling of "))
    tolerance = _FITTED if is_fitted else 1e-9
    if (header.reduction == "mean" or is_fitted) and "divisor" not in public and len(divisors):
        product, rounding = min(products, key=lambda pair: float(np.abs(divisors - pair[0]).min()))
        if float(np.abs(divisors - product).min()) <= tolerance * product:
            computed_constants.append(f"the divisor {product:g} may be {rounding}the records times the rate")
    return ", ".join(computed_constants)


def _fitted_precision(run: RecordedRun) -> float:
    """Relative difference up to which fitted divisors are equal: a factor of some steps shows in their length.

    A factor of 1.008 shows the batches of 92,000 noisy coordinates that have it.
    """
    gradients = None if run.end is None else run.end.gradients
    is_exact = gradients is not None and gradients.summed > 0 and gradients.hidden < _LEAST_HIDDEN
    return _FITTED_EXACTLY if is_exact and not run.sums_type and run.header.model != ARRAYS else _FITTED


def _sampling(run: RecordedRun) -> Assumption:
    internal = run.internal
    sampling_observed = internal is not None and internal.sampling is not None
    missing = ", but internal.log (the drawn records) is missing" if internal is None else ", but is not recorded"
    return stated("sampling", "" if sampling_observed else missing, "reported" if sampling_observed else "unchecked")


def _unused_batches(run: RecordedRun) -> Iterator[Assumption]:
    if run.end is None or run.end.drawn_batches is None or not np.isfinite(run["batches"]).any():
        return
    unused = run.end.drawn_batches - int(np.nansum(run["batches"]))
    if unused > 0:
        unused_text = "one batch was" if unused == 1 else f"{unused} batches were"
        text = f"{unused_text} drawn and not used: {TEXTS['unused-batches']}"
        # An end of each epoch, or an evaluation after it, skips batches before few steps.
        often = (run.end.passed_over or 0) > max(3, run.steps // 4)
        text += ", but batches were skipped so often that it may be a selection" if often else ""
        yield stated("unused-batches", status="unchecked" if often else "declared", text=text)


def _joined_ranks(run: RecordedRun) -> Assumption:
    comparison = run.folder.comparison or Comparison()
    compared, doubts = comparison.compared if run.internal is not None else 0, ""
    if compared < run.steps:
        doubts += f", but only {compared} of {run.steps} steps have the observations that compare ranks"
    if comparison.other_data:
        doubts += (
            ", but their datasets hold different records at the same places, so that a record may be in the shares of "
            "two ranks: load and order the data in the same way on all ranks"
        )
    text = f" ({run.header.world} ranks){doubts}"
    return stated("joined-ranks", text, "unchecked" if doubts else "declared")


def _clipping(run: RecordedRun) -> Iterator[Assumption]:
    """The assumption that contributions are clipped, unless each was observed and so checked."""
    ghost, observed = run.header.clipping == "ghost", run.has_contributions
    if observed and not ghost:
        return
    text = f"{TEXTS[PER_RECORD_CLIPPING]}; single contributions were not observed"
    passes, unverified = (None, ()) if run.end is None else (run.end.ghost, run.end.unverified_norms)
    status: AssumptionStatus = "unchecked"
    if ghost and unverified:
        layers = f"{', '.join(unverified[:5])}{f' and {len(unverified) - 5} more' if len(unverified) > 5 else ''}"
        text += (
            f", and ghost clipping has no sure norm for {layers}: Opacus counts an index that a record of EmbeddingBag "
            "repeats once, pads convolutions with zeros, ignores scale_grad_by_freq, and takes formulas of scripts: "
            "use grad_sample_mode='hooks', which sums the gradients whose norms it computes"
        )
    elif ghost and passes is not None and observed and passes.unobserved == 0 and not run.norm_excess:
        text = (
            "at every batch the gradient norms that ghost clipping computes are right, and its second backward pass "
            "gives the weighted sum of the gradients"
        )
        status = "declared"
    elif ghost and run.norm_excess:
        text += ", because ghost clipping computes norms in half precision: compute the loss in float32"
    elif ghost:
        text += (
            ", because a loss term outside the criterion of make_private is not clipped: call backward() on the "
            "criterion's loss, in float32"
        )
    yield stated(PER_RECORD_CLIPPING, status=status, text=text)


def _update_rule(run: RecordedRun, public: Collection[str]) -> Iterator[Assumption]:
    """Whether public numbers and noisy sums determine each update; none if the recording shows it."""
    doubts = list(run.options.doubts(public, private=False))
    if not run.options.first:
        doubts.append("the recording holds no options of the optimizer: record again with this version of dpspec")
    end = run.end
    if end is None:
        yield from _doubted("update-rule", doubts, "")
        return
    if end.restated:
        doubts.append(f"the optimizer's state (such as momentum) was changed before {end.restated} of its steps")
    if end.loss_scaler:
        doubts.append(
            "torch's GradScaler skips a step and lowers its scale if a gradient overflows, which depends on records "
            "and has no noise: train without it, under autocast in bfloat16"
        )
    if end.updates is not None and end.updates.failed:
        doubts.append(
            f"{end.updates.failed} updates could not be recomputed: {_changes_in_step(end)}, or an option or "
            "a part of the state cannot be copied"
        )
    named = _CLASS.fullmatch(end.optimizer)
    text = f"{end.optimizer}, whose updates are not recomputed, steps with the noisy gradients only" if named else ""
    yield from _doubted("update-rule", doubts, text)


def _changes_in_step(end: Facts) -> str:
    """What may have changed gradients within the steps of the optimizer, by the names of its hooks."""
    if not end.step_hooks:
        return "gradients changed during step()"
    named = ", ".join(end.step_hooks[:5])
    return f"gradients changed during step(), which calls the optimizer's hooks {named}: change them before step()"


def _gradient_map(run: RecordedRun) -> Iterator[Assumption]:
    """Whether a map of the noisy gradient reads no record, if the optimizer steps with other gradients."""
    if run.end is None or run.end.maps is None:
        return
    maps = run.end.maps
    explained, without = maps.explained, max(0, maps.compared - maps.by_all)
    if steps := run.mapped_steps:
        shapes = run.end.map_inputs
        reads = (
            f"reads tensors of shape {shapes} (a mask, a matrix, parameters, a public batch?)" if shapes else "varies"
        )
        text = (
            f", but the update of {several(steps, 'inspected step')} got other gradients than the noisy sum over the "
            f"divisor. What changes them {reads}, and {several(maps.replayed, 'replay')} with other records moved "
            "none: if it depends on no record, --assume gradient-map"
        )
        yield stated("gradient-map", text, "unchecked")
    elif explained and maps.moved:
        text = (
            f", but of {several(maps.replayed, 'replay')} {maps.moved} changed it with the noisy gradient as executed: "
            "compute it from the noisy gradient alone"
        )
        yield stated("gradient-map", text, "unchecked")
    elif explained and without:
        text = (
            f", but {several(explained, 'step')} changed it and {without} did not: if no record chose the steps, as by "
            "the loss of a batch, --assume gradient-map"
        )
        yield stated("gradient-map", text, "unchecked")
    elif explained:
        yield stated("gradient-map", f"; {several(explained, 'step')} changed it by operations that read nothing else")


def _doubted(name: str, doubts: Sequence[str], text: str) -> Iterator[Assumption]:
    """The assumption with its doubts, which leave it open; none without doubts and text."""
    if doubts or text:
        status: AssumptionStatus = "unchecked" if doubts else "declared"
        yield stated(name, status=status, text="; ".join(filter(None, [*doubts, text])))


def _model_state(run: RecordedRun) -> Iterator[Assumption]:
    text = "the reported parameters are all of the model: it has no other state, such as running averages"
    changed = [] if run.end is None else [name.removeprefix("_module.") for name in run.end.attributes]
    doubts = []
    if run.end is None:
        doubts.append("the recording does not compare the attributes of modules")
    if changed:
        doubts.append(
            f"buffers or attributes of modules changed during the training: {', '.join(changed[:5])}; state_dict() of "
            "the model does not hold them, but a model that is saved as a whole does"
        )
    if run.end is not None and run.end.coarse:
        named = ", ".join(run.end.coarse[:5])
        doubts.append(
            f"{named} changed by no more than rounding in half precision, as frozen weights do when adapters are "
            "merged and taken out, but a training may be as small: merge copies of the weights, or merge in float32"
        )
    texts = [text] if run.header.model == ARRAYS else []
    if run.end is not None and run.end.rounded:
        named = ", ".join(run.end.rounded[:5])
        texts.append(f"{named} changed by rounding alone, as frozen weights do when adapters are merged and taken out")
    yield from _doubted("model-state", doubts, "; ".join(texts))


def _released_model(run: RecordedRun, released: ReleasedModel | None) -> Iterator[Assumption]:
    before, resumed = run.header.told_before, run.end is not None and run.end.resumed
    text, doubt = TEXTS["released-model"], ""
    if run.header.model == ARRAYS:
        text = f"only the parameters that the loop reported last are released; {NOTHING_ELSE}"
    if before:
        doubt = f", but its accountant had counted {before} steps when it began"
    elif resumed:
        doubt = ", but its optimizer had made steps when it began"
    if run.end is None:
        doubt += f", but {run.missing_end}; what came after it is not known"
    elif run.end.other_steps:
        doubt += (
            f", but other private optimizers made {run.end.other_steps} steps in the block, which are not in this "
            "recording: record the steps of each engine in a separate part, with resume=True"
        )
    elif (script := run.folder.script) is not None and script.missed:
        doubt += (
            f", but its optimizer made {several(script.missed, 'step')} in the script that the recording does not "
            "have: it began or continued without its loader or the private model"
        )
    status: AssumptionStatus = "false" if before else "unchecked" if doubt else "declared"
    if released is None or status == "false":
        yield stated("released-model", status=status, text=f"{text}{doubt}")
        return
    recorded = run.folder.weights
    if isinstance(recorded, str):
        sharded = "each rank holds rows of the model, and none the whole"
        reason = run.missing_end or (sharded if run.header.shards else recorded)
        yield stated("released-model", f", but {released.name} cannot be compared: {reason}", "unchecked")
        return
    equal, sentence = released.sentence(recorded)
    if not equal:
        fix = "release the state_dict() at the end of the block; an average or a cast of it is another model"
        yield stated("released-model", status="false", text=f"{sentence}: {fix}")
        return
    yield stated("released-model", status="reported", text=sentence)
    yield stated("model-choice", doubt, status)


def _unmixed_batches(run: RecordedRun) -> Assumption:
    end = run.end
    doubts = []
    if end is not None and end.carrying:
        doubts.append(
            f"{several(end.carrying, 'replayed step')} used values that the script computed from the batch before (a "
            "queue, a running mean, a hidden state): a record then also changes the gradients of later batches; "
            "compute nothing from a batch for later steps"
        )
    if end is not None and end.tables:
        doubts.append(
            f"{several(end.tables, 'replayed step')} used a table with a row for each record (a memory bank, "
            "embeddings, scores) at other records than the drawn ones, and its rows depend on the records: a record "
            "then also changes the gradients of others; read such a table at the drawn records alone"
        )
    text = f", but {', and '.join(doubts)}" if doubts else _replays(run)
    return stated("unmixed-batches", text, "unchecked" if doubts else "declared")


def _replays(run: RecordedRun) -> str:
    end = run.end
    if end is not None and end.replays is not None and end.replays.replayed >= 1.0:
        return f"; {end.replays.replayed:.0f} steps were replayed with other records, and tested"
    if end is not None and end.replay_failure:
        return f"; the chosen steps were not replayed: {end.replay_failure}"
    return ""


def _repeated_records(repeats: int, group_size: int) -> Iterator[Assumption]:
    if repeats > 1:
        covered = group_size >= repeats
        text = f"; a record occurs {repeats} times" + ("" if covered else f": use --group-size {repeats}")
        yield stated("repeated-records", text, "reported" if covered else "false")


def _records(run: RecordedRun, reduction: Assumption | None) -> Iterator[Assumption]:
    end = run.end
    if reduction is not None:
        yield reduction
    if run.header.model == ARRAYS:
        text = "the loop computes each gradient at the parameters that it reported last"
        yield stated("gradient-parameters", status="declared", text=text)
    passes = None if end is None else end.passes
    if run.header.source == "opacus" and passes is not None and passes.unseen:
        text = (
            f"no forward pass in training mode was observed at {passes.unseen} of {passes.steps} steps: call the model "
            "that dpspec.record got, and compile it by torch.compile, not in place"
        )
        yield stated("gradient-parameters", status="unchecked", text=text)
    if end is not None and end.error:
        named = f" ({end.error})" if _CLASS.fullmatch(end.error) else ""
        span, reason = "block", TEXTS["ended-by-error"]
        if run.folder.script is not None:
            span = "script"
            reason = (
                "a record may cause an error, and a person may stop by a loss: record a run without it, or "
                "--assume ended-by-error"
            )
        text = f"an exception{named} ended the {span} after {several(run.steps, 'step')}: {reason}"
        yield stated("ended-by-error", status="unchecked", text=text)


def _loss_reduction(run: RecordedRun) -> Assumption | None:
    """The assumption ``loss-reduction``; None if the recording shows that the loss is the declared mean or sum.

    It is unchecked if replays at another batch size (``docs/explanation/replay.md``) measure another reduction, and
    declared if no step was replayed so.
    """
    end, declared = run.end, run.header.reduction
    if end is None or run.header.source != "opacus":
        return None
    if end.sizes is None:
        sizes = np.unique(run["rows"][np.isfinite(run["rows"])])
        return None if len(sizes) < 2 else stated("loss-reduction", "; no step was replayed at another batch size")
    steps, low, high = end.sizes.steps, end.sizes.lowest, end.sizes.highest
    expected = -1.0 if declared == "mean" else 0.0
    power = low if expected - low > high - expected else high
    if abs(power - expected) <= _SAME_POWER:
        return None
    measured = {-1: "mean", 0: "sum"}.get(round(power))
    kind = f"a {measured} over the batch" if measured else "neither a mean nor a sum"
    fix = f', or make_private loss_reduction="{measured}"' if measured else ""
    text = (
        f", but {several(steps, 'replay')} at another batch size b found gradients of the loss that change as "
        f'b^{power:.2f}, as if the loss were {kind}, and loss_reduction is "{declared}": give the loss the reduction '
        f'"{declared}"{fix}'
    )
    return stated("loss-reduction", text, "unchecked")
