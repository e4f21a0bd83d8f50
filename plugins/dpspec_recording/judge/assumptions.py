"""Assumptions of a bound on a recorded run, each by name with the status that the recording supports."""

import math
import re
from collections.abc import Collection, Iterator

import numpy as np

from dpspec.contract import Assumption
from dpspec.contract.findings import AssumptionStatus
from dpspec.results.honest_script import HONEST_SCRIPT
from dpspec.text import joined, several
from dpspec_recording.folder.part import Comparison
from dpspec_recording.folder.weights import ReleasedModel
from dpspec_recording.judge.bounds import ADD_REMOVE
from dpspec_recording.judge.joined_checks import joined_parts, server_weights
from dpspec_recording.judge.recorded_run import RecordedRun, follow
from dpspec_recording.observers.constants.divisor import FITTED
from dpspec_recording.outcomes.conditions import CONDITIONS, NOTHING_ELSE, TEXTS, stated
from dpspec_recording.outcomes.issue import Statement, assumptions_of, doubts_about, undeclared

#: Name of a class.
_CLASS = re.compile(r"[A-Za-z_][\w.<>]{0,99}", re.ASCII)


class RunAssumptions:
    """The assumptions of the bounds on a run. Two depend on the bound's adjacency or group size, the others on neither.

    computed: why a constant is computed from the records, or empty. undeclared: the constants that a script may have
    computed from the number of records and the user does not declare public, or empty.
    """

    def __init__(self, run: RecordedRun, public: Collection[str], released: ReleasedModel | None = None) -> None:
        """released: the model to be released, None if the user names none."""
        self._run, self._public = run, public
        self.computed = _computed_from_records(run)
        self._maybe_computed, self.undeclared = _maybe_computed(run), _maybe_computed(run, public)
        self._statements = tuple(undeclared(run.all_statements, public))
        statements = [*_of_run(run, released), *_records(run), *self._statements]
        besides = ("released-model", "data-independent-hyperparameters")
        self._of_all_bounds = tuple(assumptions_of(statements, besides=besides))

    def of(self, adjacency: str, group_size: int) -> tuple[Assumption, ...]:
        """The assumptions of a bound in this adjacency for groups of this size."""
        repeated = _repeated_records(self._run.header.repeats, group_size)
        needed = (self._constants(adjacency), *self._of_all_bounds, *repeated)
        return tuple(sorted(needed, key=lambda assumption: CONDITIONS[assumption.name].assumption_order))

    def _constants(self, adjacency: str) -> Assumption:
        run, public, maybe = self._run, self._public, self._maybe_computed
        text = TEXTS["data-independent-hyperparameters"]
        status: AssumptionStatus = "declared"
        doubts = doubts_about("data-independent-hyperparameters", self._statements)
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


def _of_run(run: RecordedRun, released: ReleasedModel | None) -> Iterator[Statement]:
    yield stated("exact-arithmetic")
    yield stated("secret-randomness")
    yield stated(HONEST_SCRIPT)
    if run.header.world:
        yield _joined_ranks(run)
    if run.resumed is not None:
        yield joined_parts(run.resumed)
    yield from server_weights(run)
    yield from _released_model(run, released)
    yield stated("one-record")


def _computed_from_records(run: RecordedRun) -> str:
    observed = np.isfinite(run["divisor"]) & np.isfinite(run["rows"])
    sizes = run["rows"][observed]
    if len(np.unique(sizes)) > 1 and np.allclose(run["divisor"][observed], np.maximum(sizes, 1.0), rtol=1e-5):
        return "the divisor is the number of records in each batch: divide by the rate times the number of records"
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
    rate = header.rate if not header.batches_are_reported else float(rates[0]) if len(rates) == 1 else None
    if header.records is None or rate is None or rate <= 0.0:
        return ""
    computed_constants = []
    batches = round(1.0 / rate)
    if not header.batches_are_reported and abs(batches * rate - 1.0) < 1e-9 and "rate" not in public:
        computed_constants.append(f"the rate {rate:.4g} may be 1 over the number of batches")
    mean_size = header.records * rate
    divisors = run["divisor"][np.isfinite(run["divisor"])]
    if header.expected_batch_size is not None:
        divisors = np.append(divisors, header.expected_batch_size)
    is_fitted = header.divisor_is_fitted
    if run.has_mapped_factor:  # a script that divides the sum itself
        divisors, is_fitted = run["measured_divisor"][np.isfinite(run["measured_divisor"])], True
    products = ((math.floor(mean_size), "the floor of "), (mean_size, ""), (math.ceil(mean_size), "the ceiling of "))
    tolerance = FITTED if is_fitted else 1e-9
    if (header.reduction == "mean" or is_fitted) and "divisor" not in public and len(divisors):
        product, rounding = min(products, key=lambda pair: float(np.abs(divisors - pair[0]).min()))
        if float(np.abs(divisors - product).min()) <= tolerance * product:
            computed_constants.append(f"the divisor {product:g} may be {rounding}the records times the rate")
    return ", ".join(computed_constants)


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


def _released_model(run: RecordedRun, released: ReleasedModel | None) -> Iterator[Assumption]:
    before = run.header.told_before
    text, doubt = TEXTS["released-model"], ""
    if run.has_arrays:
        text = f"only the parameters that the loop reported last are released; {NOTHING_ELSE}"
    if before:
        doubt = f", but its accountant had counted {before} steps when it began"
    if run.end is None:
        doubt += f", but {run.missing_end}; what came after it is not known"
    doubt += "".join(f", but {text}" for text in doubts_about("released-model", run.all_statements))
    script = None if run.end is None else run.folder.script
    if script is not None and script.returned:
        doubt += (
            f", but the script loaded weights of an earlier step {several(script.returned, 'time')}: if a loss on the "
            "records chose them, the choice has no noise"
        )
    if script is not None and script.missed:
        doubt += (
            f", but its optimizer made {several(script.missed, 'step')} in the script that the recording does not "
            "have: it began or continued without its loader or the private model"
        )
    status: AssumptionStatus = "false" if before else "unchecked" if doubt else "declared"
    if script is not None and (besides := script.steps_on_records(after=released is None)):
        doubt = f"; an exception is what {joined(besides)} learned, which is neither released nor used{doubt}"
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


def _repeated_records(repeats: int, group_size: int) -> Iterator[Assumption]:
    if repeats > 1:
        covered = group_size >= repeats
        text = f"; a record occurs {repeats} times" + ("" if covered else f": use --group-size {repeats}")
        yield stated("repeated-records", text, "reported" if covered else "false")


def _records(run: RecordedRun) -> Iterator[Assumption]:
    end = run.end
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
