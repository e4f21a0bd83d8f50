"""What a bound on a recorded run rests on, each by name, with what the recording knows of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np

from dpspec.contract import Assumption
from dpspec.contract.findings import AssumptionStatus
from dpspec.engine.recorded.channels.absent_evidence import with_absent_evidence
from dpspec.engine.recorded.channels.contributions import clipping_assumption, contribution_assumptions
from dpspec.engine.recorded.channels.gradient_checks import counts
from dpspec.engine.recorded.channels.hyperparameters import NAMES
from dpspec.engine.recorded.costs.epsilons import ADD_REMOVE
from dpspec.engine.recorded.half_precision import sums_type
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.engine.recorded.run_sums import InternalSums
from dpspec.engine.recorded.told_noise import not_measured

#: From so many steps on it is no chance that a constant rises or falls with the sizes of batches.
_FEWEST = 12

#: Divisors that the recorder fits to gradients are the same if they agree to this, relatively.
_FITTED = 1e-2

#: How a class is called.
_CLASS = re.compile(r"[A-Za-z_][\w.<>]{0,99}", re.ASCII)


def computed_from_records(run: RecordedRun) -> str:
    """Which constant of the run was computed from the records, as the recording shows; "" for none."""
    seen = np.isfinite(run["divisor"]) & np.isfinite(run["rows"])
    sizes = run["rows"][seen]
    if len(np.unique(sizes)) > 1 and np.allclose(run["divisor"][seen], np.maximum(sizes, 1.0), rtol=1e-5):
        return "the divisor is the number of records in each batch"
    rates = np.nan_to_num(run["rate"])
    for name in ("divisor", "learning_rate", "clip_norm", "noise_multiplier"):
        seen = np.isfinite(run[name]) & np.isfinite(run["rows"])
        for rate in np.unique(rates[seen]):
            at = seen & (rates == rate)
            if _follows(run[name][at], run["rows"][at]):
                return f"the {name.replace('_', ' ')} follows the number of records in each batch"
    return ""


def _follows(values: Array, sizes: Array) -> bool:
    """Whether the values rise or fall with the sizes, at every one of twelve steps or more, and are many.

    A schedule that looks at no batch does so by chance: one of three single steps and nine alike with probability
    2 * 9! / 12! = 0.0015, all others of twelve steps more rarely, and the rarer the more steps there are.
    """
    different, several = len(np.unique(sizes)), len(np.unique(values))
    if len(sizes) < _FEWEST or several < max(4, different / 2):
        return False
    moves = np.diff(np.unique(np.stack([sizes, values]), axis=1)[1])
    return len(moves) + 1 == different and (bool((moves >= 0).all()) or bool((moves <= 0).all()))


def maybe_computed(run: RecordedRun, public: Collection[str] = ()) -> str:
    """Which constants of the run equal those that Opacus computes from the number of records; "" if none does.

    ``make_private`` samples at one over the number of batches, and divides by the floor of the records times that rate.
    A number that the user chose may be the same: names in ``public`` are not reported.
    """
    header = run.header
    if header.source != "opacus" or header.records is None or header.rate is None or header.rate <= 0.0:
        return ""
    found = []
    batches = round(1.0 / header.rate)
    if abs(batches * header.rate - 1.0) < 1e-9 and "rate" not in public:
        found.append(f"the rate {header.rate:.4g} may be 1 over the number of batches")
    floor = float(int(header.records * header.rate))
    divisors = run["divisor"][np.isfinite(run["divisor"])]
    counted = header.reduction == "mean" and "divisor" not in public
    if counted and (header.expected_batch_size == floor or bool((divisors == floor).any())):
        found.append(f"the divisor {floor:g} may be the floor of the records times the rate")
    return ", ".join(found)


def assumptions(
    run: RecordedRun,
    internal: InternalSums | None,
    adjacency: str,
    *,
    public: Collection[str] = (),
    group_size: int = 1,
) -> tuple[Assumption, ...]:
    """All of them, in the order in which a reader should doubt them.

    public: names of hyperparameters that do not depend on the records, as the user declares. group_size: the number of
    records that the claim covers.
    """
    header = run.header
    found = [_constants(run, adjacency, public)]
    if header.scheme == "poisson" or np.isfinite(run["rate"]).any():
        seen = internal is not None and internal.sampling is not None
        text = "each record enters each batch by a coin of its own" + ("" if seen else "; who was drawn was not seen")
        found.append(Assumption(name="sampling", status="reported" if seen else "unchecked", text=text))
        unused = unused_batches(run)
        if unused:
            text = (
                f"{batches_left(unused)}, at the ends of passes over the loader; which does not depend on who was in it"
            )
            often = passed_over_often(run)
            if often:
                text += ", but batches were passed over at so many steps that it looks like a choice"
            found.append(Assumption(name="unused-batches", status="unchecked" if often else "declared", text=text))
    largest = internal is not None and bool(np.isfinite(internal.largest).any())
    found.extend(clipping_assumption(run, observed=largest))
    half = sums_type(run)
    if half:
        text = f"sums of gradients and noise are rounded to {half}, and what that does to a neighbour's is not bounded"
        found.append(Assumption(name="precision", status="unchecked", text=text))
    kind = "a cryptographic generator" if header.secure else "torch's generator, which is not a cryptographic one"
    text = (
        f"noise is Gaussian and cannot be predicted; it comes from {kind if header.source == 'opacus' else 'the loop'}"
    )
    found.append(Assumption(name="noise-law", status="declared", text=text))
    text = (
        "the adversary does not know the seeds of noise and batches, and the seeds do not depend on the records: a "
        "script that sets a constant seed must keep it secret"
    )
    found.append(Assumption(name="secret-randomness", status="declared", text=text))
    text = (
        "the script replaces no code of torch or Opacus, such as a sampler's iteration or an optimizer's update; of "
        "the optimizer's own methods the recorder names replaced ones"
    )
    found.append(Assumption(name="library-code", status="declared", text=text))
    if header.source == "own-loop":
        text = (
            "the reports of the loop are true: the batches and norms that it reports, and that the reported sum "
            "contains each drawn record once, with its reported norm, and that the reported noise is fresh and "
            "Gaussian beyond the limits of the channel's tests"
        )
        why = not_measured(run)
        text += f"; the recording does not confirm the reported noise in the gradients: {why}" if why else ""
        found.append(Assumption(name="loop-reports", status="unchecked" if why else "declared", text=text))
    found += _update_rule(run, public)
    found += _model_state(run)
    text = (
        "only the tensors of state_dict() at the end of the recording are released, not the module object (with its "
        "attributes, hooks and per-sample gradients) nor the optimizer's state; nothing is trained on these records "
        "before or after the recording, and no choice among models reads them: early stopping and the best of several "
        "checkpoints are such choices"
    )
    resumed = run.said("resumed") is True
    before = header.told_before
    if resumed and not before:
        text += ", but its optimizer had made steps when it began"
    if before:
        text += f", but its accountant had counted {before} steps when it began"
    if run.end is None:
        text += f", but the recording has no end: what came after step {run.steps} is not known"
    status: AssumptionStatus = "false" if before else "unchecked" if resumed or run.end is None else "declared"
    found.append(Assumption(name="released-model", status=status, text=text))
    found.extend(contribution_assumptions(run, group_size))
    if header.scheme in ("shuffled", "sequential"):
        text = "which batch a record comes in does not depend on what the records are"
        found.append(Assumption(name="order", status="declared", text=text))
    return with_absent_evidence(run, found)


def batches_left(unused: int) -> str:
    """That so many batches were drawn and not used."""
    return "one batch was drawn and not used" if unused == 1 else f"{unused} batches were drawn and not used"


def passed_over_often(run: RecordedRun) -> bool:
    """Whether batches were drawn and not used before more than a quarter of the steps: an end of each epoch, or an
    evaluation after it, leaves some before few."""
    times = run.said("passed_over")
    return type(times) is int and times > max(3, run.steps // 4)


def unused_batches(run: RecordedRun) -> int:
    """How many batches were drawn that no step is made of."""
    drawn, batches = run.said("drawn_batches"), run["batches"]
    if type(drawn) is not int or not np.isfinite(batches).any():
        return 0
    return max(0, drawn - int(np.nansum(batches)))


def _model_state(run: RecordedRun) -> Iterator[Assumption]:
    """What is not known of the attributes of modules; nothing if the recording shows that none changed."""
    changed, unread = run.names("attributes"), run.names("unread")
    doubts = []
    if not isinstance(run.said("attributes"), list):
        doubts.append("the recording does not compare the attributes of modules: record again with this version")
    if changed:
        doubts.append(
            f"attributes of modules or of the optimizer changed during the training: {', '.join(changed[:5])}; "
            "state_dict() of the model does not hold them, but a model or optimizer that is saved as a whole does"
        )
    if unread:
        doubts.append(f"what cannot be read or is too large was not compared: {', '.join(unread[:5])}")
    if doubts:
        yield Assumption(name="model-state", status="unchecked", text="; ".join(doubts))


def _update_rule(run: RecordedRun, public: Collection[str]) -> Iterator[Assumption]:
    """Whether public numbers and noisy sums alone decide each update; nothing if the recording shows it."""
    doubts = list(run.options.doubts(public, private=False))
    if not run.options.first:
        doubts.append("the recording holds no options of the optimizer: record again with this version of dpspec")
    changed, restated, own = (run.said(name) for name in ("changed", "restated", "optimizer"))
    if type(changed) is int and changed > 0:
        doubts.append(f"gradients were others after {changed} updates than before them: a hook changed them meanwhile")
    if type(restated) is int and restated > 0:
        doubts.append(f"the optimizer's state (such as momentum) was changed before {restated} of its steps")
    updates = counts(run, "updates", 4)
    if updates is not None and updates[3]:
        doubts.append(
            f"{updates[3]} updates could not be recomputed: gradients changed during step(), or options or state are "
            "neither numbers nor tensors"
        )
    named = isinstance(own, str) and _CLASS.fullmatch(own)
    text = f"{own}, whose updates are not recomputed, steps with the noisy gradients alone" if named else ""
    if doubts:
        yield Assumption(name="update-rule", status="unchecked", text="; ".join([*doubts, text] if text else doubts))
    elif text:
        yield Assumption(name="update-rule", status="declared", text=text)


def _constants(run: RecordedRun, adjacency: str, public: Collection[str]) -> Assumption:
    text = (
        "rate, divisor, clip norm, noise multiplier, learning rate and number of steps, how and when their schedulers "
        "change them, and the initial model (parameters, buffers and attributes) do not depend on the records"
    )
    counted, maybe = computed_from_records(run), maybe_computed(run)
    status: AssumptionStatus = "declared"
    doubts = list(run.options.doubts(public, private=True))
    divisors = run["divisor"][np.isfinite(run["divisor"])]
    if run.header.source == "own-loop" and "divisor" not in public and len(divisors):
        low, high = float(divisors.min()), float(divisors.max())
        if high > (1.0 + _FITTED) * low:
            doubts.append(f"the divisor of gradients is from {low:.4g} to {high:.4g}: declare it by --public divisor")
    if counted:
        status, text = "false", f"{text}, but {counted}"
    elif doubts:
        status, text = "unchecked", f"{text}, but {'; '.join(doubts)}"
    elif adjacency != ADD_REMOVE and maybe:
        text += f" other than by their number, which is public: {maybe}"
    elif maybe and maybe_computed(run, public):
        status, text = "unchecked", f"{text}, but {maybe_computed(run, public)}"
    else:
        named = "all hyperparameters" if {*public} >= {*NAMES} else ", ".join(sorted(public))
        text += f": the user declares {named} public" if public else ": one run does not show it"
        text += f", although {maybe}" if maybe else ""
    if run.options.first:
        text += f". Options at the first step: {run.options.listed()}"
    if run.options.calling:
        text += f". {', '.join(run.options.calling)} calls functions of the script, which are assumed to read no record"
    return Assumption(name="data-independent-hyperparameters", status=status, text=text)
