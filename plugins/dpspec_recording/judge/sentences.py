"""Sentences on a recorded run for its user: conditions to confirm, the executed schedule, and faults."""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np

from dpspec.contract import Assumption
from dpspec.contract.executed import FiredRule
from dpspec.contract.rules import Rule
from dpspec.decimals import nearest
from dpspec.text import joined, several
from dpspec_recording.folder.audit_facts import POWER, found_faults
from dpspec_recording.folder.script_facts import MOST_LISTED, ScriptFacts
from dpspec_recording.judge.advice import advice_on
from dpspec_recording.judge.joined_checks import received_parts
from dpspec_recording.judge.recorded_run import Array, RecordedRun
from dpspec_recording.judge.section import reports_batches
from dpspec_recording.outcomes.faults import RunTest
from dpspec_recording.probes.gradient_map import GradientMap
from dpspec_recording.probes.model_state import ModelState
from dpspec_recording.probes.noise import Noise, untested_tails
from dpspec_recording.probes.option_history import public_name
from dpspec_recording.probes.parameters import MOVED
from dpspec_recording.probes.passes import OTHER_PARAMETERS
from dpspec_recording.probes.public_steps import PublicSteps
from dpspec_recording.probes.replays import Replays
from dpspec_recording.probes.rules import Rules
from dpspec_recording.probes.updates import Updates
from dpspec_recording.rules import duplicate_records, second_optimizer
from dpspec_recording.rules.duplicate_records import CopyFacts
from dpspec_recording.rules.second_optimizer import OtherOptimizers

F = TypeVar("F")


def _noted(run: RecordedRun, rule: Rule, kind: type[F]) -> Sequence[F | None]:
    """The facts of a rule in each rank and part of a run that has an end."""
    facts = run.fact(Rules)
    return () if facts is None else facts.of(rule, kind)


def confirmations(
    run: RecordedRun,
    group_size: int,
    public: Collection[str],
    reduction: Assumption | None,
    *,
    released: bool = False,
    adjacency: str = "zero-out",
) -> Iterator[str]:
    """The assumptions of a proof that no recording shows, each a sentence that a person can confirm.

    reduction: the assumption ``loss-reduction``, if the run needs it. released: whether the model to be released is the
    recorded one at its end. adjacency: of the claim.
    """
    header = run.header
    records = f"{header.records:,} records" if header.records else "records"
    if group_size == 1:
        yield f"one person has one of the {records}{_no_copies(run)}{_ids(run, group_size)}"
    else:
        yield f"one person has at most {group_size} of the {records}{_ids(run, group_size)}"
    script = run.folder.script
    if script is None:
        when = "before or during the block" if released else "before, during or after the block"
        yield f"nothing else was trained on these records, {when}, {_NO_TEACHER}"
    else:
        yield from _outside(run, script, released=released)
    if run.resumed is not None and received_parts(run.resumed):
        yield "the server has of these records only the weights after each part: no other update, statistic or loss"
    choices = f"checkpoints, stopping by loss{_reads(run, script)}"
    model = "model was" if released else "weights follow from recorded ones, and were"
    yield f"the released {model} chosen without records ({choices})"
    architecture = ("features chosen by labels", "classes", "vocabulary", "layer sizes")
    map_facts = run.fact(GradientMap)
    is_mapped = map_facts is not None and map_facts.explained
    maps = ["the map of the noisy gradient"] if is_mapped else []
    replays = run.fact(Replays)
    if replays is not None and replays.projected:
        maps.append("the norm to which the loop clips the sum again")
    constants = joined(
        [*architecture, "frozen, pruned or initial weights", *maps, *_constants(run, public), f"{run.steps} steps"]
    )
    yield f"{constants} were not tuned on or computed from them (see how-to/tuning.md)"
    yield (
        "labels, features, scale, padding, weight, temperature, loss and choice of a record come from it alone: not "
        f"from its batch, earlier ones or the dataset{_varying(run)}{_not_replayed(run)}"
    )
    yield from _tested(run)
    state = run.fact(ModelState)
    if state is not None and state.options:
        yield f"no record and no loss changed {state.options_text}, which changed during the training (a schedule may)"
    noted = [facts for facts in _noted(run, second_optimizer.RULE, OtherOptimizers) if facts is not None]
    stepped = dict.fromkeys(optimizer.name for facts in noted for optimizer in facts.optimizers)
    if stepped:
        named = joined([*stepped])
        yield f"no number that the script reads from tensors (item, tolist) enters the loss or options of {named}"
    updates = run.fact(Updates)
    if updates is not None and updates.optimizer:
        replayed = "no update was replayed"
        if updates.replayed:
            replayed = f"{several(updates.replayed, 'update')} stayed in replays with other records"
        yield (
            f"the step of {updates.optimizer} reads the noisy gradients and its own state only: no batch, token, mask "
            f"or loss, also not of earlier batches ({replayed})"
        )
    public_facts = run.fact(PublicSteps)
    if public_facts is not None and public_facts.is_declared:
        yield (
            "the data that public= declares holds no record, no copy of one, and nothing computed from one, such as "
            f"labels or rows of a model that read records ({public_facts.comparison})"
        )
    if reduction is not None and reduction.status == "declared":
        yield f"the loss is a {header.reduction} over the records of each batch, as loss_reduction says"
    yield (
        "seeds and states of generators are secret: no constant, time, weights or records; no log, threshold or "
        "statistic is released"
    )
    if header.clipping == "ghost" and _not_replayed(run):
        yield "each trained weight is used once, by the layer that holds it: Opacus computes the norms layer by layer"
    if header.is_reported:
        tails = untested_tails(run.fact(Noise))
        its_tails = (
            f", and the noise is Gaussian in all directions, of one size for all batches, and {tails}" if tails else ""
        )
        yield (
            "the loop reports every drawn batch, skips none by its records or size, cuts and fills none, and "
            "draws them at random (by no hash, list or loss); its norms (after all weights), sums and noise are true, "
            f"no loss or norm decides that noise is drawn again, no key or random number has two uses{its_tails}"
        )
        if header.federated:
            yield (
                "the update of a client follows from the global model and its own data alone: from no other client's "
                "update, control variate, statistic or loss; later rounds use nothing of it without noise"
            )
        if run.has_arrays:
            yield (
                "the reported arrays are the whole model: no statistic of batches (batch_stats), average or other "
                "state that records move is used or released"
            )
        if adjacency == "add-remove":
            yield "no weight, factor or clipping of a record follows the number of records in its batch"
        if _not_replayed(run):
            yield (
                "each record's gradient is clipped by its l2 norm over all layers, and the reported norm is of the "
                "clipped gradient in the sum: clipping by coordinates or layers leaves longer ones, which a norm "
                "capped at the clip norm does not show"
            )


#: The end of the sentence on other trainings.
_NO_TEACHER = "and no teacher or other model that read them is used"


def _outside(run: RecordedRun, script: ScriptFacts, *, released: bool) -> Iterator[str]:
    """The sentences that a person confirms about other trainings, if the recorder watched the whole script.

    The recorder counts steps of torch's optimizers. It does not see a training by other means.
    """
    optimizers = _noted(run, second_optimizer.RULE, OtherOptimizers)
    during = any(facts is None or facts.optimizers for facts in optimizers)
    is_alone = script.whole and not (script.before or script.after or script.peers or during)
    alone = " (no other one stepped)" if is_alone else ""
    yield (
        "nothing else was trained on these records by other processes or earlier runs, or in the script by other means "
        f"than an optimizer of torch{alone}, {_NO_TEACHER}"
    )
    if on_records := script.steps_on_records():
        yield (
            f"nothing that these steps learned is released or used, as their loops read some of these records without "
            f"noise: {joined(on_records)}"
        )
    steps = [steps.phrase("before") for steps in script.before if not steps.common]
    steps += [steps.phrase("after") for steps in script.after if not (steps.common or released)]
    if steps:
        yield f"these steps in the script read none of these records: {joined(steps)}"
    if not script.whole:
        yield "nothing was trained on these records in the script before it imported dpspec.auto"
    common = [peer.folder for peer in script.peers if peer.common]
    unknown = [peer.folder for peer in script.peers if peer.common is None]
    if common:
        yield (
            f"the models of {_numbered(common)} of the script, which were trained on some of the same records, are not "
            "released: else the composition has a larger epsilon (dpspec ledger)"
        )
    if unknown:
        yield f"{_numbered(unknown)} of the script had none of these records, or the model is not released"


def _numbered(folders: Sequence[str]) -> str:
    return f"training{'' if len(folders) == 1 else 's'} {joined(folders)}"


def _reads(run: RecordedRun, script: ScriptFacts | None) -> str:
    """The steps after which the script read the weights; empty without the script."""
    if script is None or not script.read:
        return ""
    if script.read == (run.steps,):
        return "; the script read its state_dict() after the last step only"
    spans: list[list[int]] = []
    for step in script.read:
        if spans and step == spans[-1][-1] + 1:
            spans[-1].append(step)
        else:
            spans.append([step])
    steps = [f"step {span[0]}" if len(span) == 1 else f"steps {span[0]} to {span[-1]}" for span in spans]
    earlier = " and perhaps earlier ones" if len(script.read) == MOST_LISTED else ""
    return f"; the script read its state_dict() after {joined(steps)}{earlier}"


def _not_replayed(run: RecordedRun) -> str:
    """That no replayed step tests whether records mix, or why few of those tried; empty if most do."""
    replays = run.fact(Replays)
    tried, replayed = (0.0, 0.0) if replays is None else (replays.tried, replays.replayed)
    if run.end is None or (replayed >= 1.0 and 2.0 * replayed >= tried):
        return ""
    if replays is None or not replayed:
        return "; no step was replayed to test this"
    reason = f" ({replays.failure})" if replays.failure else ""
    verb = "was" if round(replayed) == 1 else "were"
    return f"; only {replayed:.0f} of {tried:.0f} chosen steps {verb} replayed to test this{reason}"


def _varying(run: RecordedRun) -> str:
    """Whether operations of the sum use numbers that a replay repeats, although they vary: from earlier losses?"""
    replays = run.fact(Replays)
    if replays is None or not replays.varying:
        return ""
    return "; the loss uses numbers that vary between steps (no loss of earlier steps)"


def _tested(run: RecordedRun) -> Iterator[str]:
    """A sentence if the script tests conditions on a batch before its sum: the other branch may not have run."""
    replays = run.fact(Replays)
    if replays is not None and replays.testing:
        steps = several(replays.testing, "traced step")
        yield (
            f"no batch is skipped, repeated or weighed by a condition on its records: {steps} tested such a "
            f"condition in Python before the sum ({_lines(replays.tested_at) or 'if, assert'})"
        )
    if replays is not None and replays.followed:
        steps = several(replays.followed, "traced step")
        yield (
            f"no batch is skipped, repeated or weighed by a number that the script read of it: {steps} read such "
            f"numbers before the sum ({_lines(replays.read_at) or 'item(), numpy()'}), and used no other than replays "
            "repeat"
        )


def _lines(lines: Sequence[str]) -> str:
    """``train.py:31``, the first lines."""
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")


def _no_copies(run: RecordedRun) -> str:
    """The fact that no two records are equal, if the rule on copies read the dataset and no part has any.

    Half of the inspected records with a near copy are a sign of copies with noise.
    """
    noted = _noted(run, duplicate_records.RULE, CopyFacts)
    copies = [facts for facts in noted if facts is not None and facts.rows and facts.most == 1]
    if not copies or len(copies) < len(noted):
        return ""
    inspected, nearly_equal = sum(facts.inspected for facts in copies), sum(facts.near_copies for facts in copies)
    if 2 * nearly_equal >= inspected > 0:
        text = f"{nearly_equal} of {inspected} inspected ones nearly equal another: copies with noise?"
        return f" (no two are equal, but {text})"
    return " (no two are equal)"


def _ids(run: RecordedRun, group_size: int) -> str:
    """A question about a column of the dataset that may hold the ids of persons with several records; empty without."""
    noted = (facts for facts in _noted(run, duplicate_records.RULE, CopyFacts) if facts is not None)
    for facts in noted:
        if facts.rows_of_an_id > group_size:
            values = f"a column has {facts.ids} values in {facts.rows_of_an_id} rows each"
            return f"; {values}: are these ids of persons, or of other groups (--group-size {facts.rows_of_an_id})?"
    return ""


def _constants(run: RecordedRun, public: Collection[str]) -> Iterator[str]:
    """The constants that the user does not declare public, with their values or ranges."""
    for name in ("learning_rate", "clip_norm", "noise_multiplier"):
        adaptive = name == "clip_norm" and run.header.clipping == "adaptive"
        text = _range(run[name][:1] if adaptive else run[name])
        if public_name(name) not in public and text:
            yield (
                f"first clip norm {text} and the constants of its adaptation"
                if adaptive
                else f"{name.replace('_', ' ')} {text}"
            )


def _range(values: Array) -> str:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.max())
    return nearest(low) if low == high else f"{nearest(low)} to {nearest(high)}"


def executed_sentence(run: RecordedRun) -> str:
    """``100 steps, rate 0.05, noise multiplier 1, clip norm 1, learning rate 0.1; SGD on 738 parameters``."""
    header = run.header
    noise = np.array([np.nan if sigma is None else sigma for sigma in run.configured_multipliers])
    rates = np.array([np.nan if rate is None else rate for rate in run.rates])
    quantities = [("rate", rates), ("noise multiplier", noise), ("clip norm", run["clip_norm"])]
    quantities.append(("learning rate", run["learning_rate"]))
    phrases = [f"{run.steps:,} step{'' if run.steps == 1 else 's'}"]
    phrases += [f"{name} {text}" for name, values in quantities if (text := _range(values))]
    optimizer = header.inner or header.optimizer or "no optimizer"
    clipping = f" with {header.clipping} clipping" if header.clipping not in ("flat", "own") else ""
    clipping += f" in {header.world} processes" if header.world else ""
    schemes = {"none": "unobserved batches", "unknown": "batches of an unknown kind"}
    batches = schemes.get(header.scheme, f"{header.scheme} batches")
    batches = "batches reported by the loop" if reports_batches(run) else batches
    records_text = f" from {header.records:,} records" if header.records else ""
    trained = f"{optimizer}{clipping} on {header.parameters:,} parameters"
    return f"{', '.join(phrases)}; {trained}; {batches}{records_text}{_audits(run)}"


def _audits(run: RecordedRun) -> str:
    """The number of audited steps, the number of faulty ones that audits find (:func:`found_faults`), and replays.

    Audits compare gradients and updates. Wrong clipping and mixed records show in replayed steps only, which are far
    fewer.
    """
    if run.end is None:
        return ""
    audits = run.end.audits
    replays_of_run = run.fact(Replays)
    steps, replayed = audits.steps, 0 if replays_of_run is None else int(replays_of_run.replayed)
    replays = f"{replayed:,} replayed"
    if replays_of_run is not None and replays_of_run.replaced:
        replays += f" with other {joined(replays_of_run.replaced)}"
    if audits.are_whole:
        return f"; all {steps:,} steps audited; {replays}"
    faulty = found_faults(steps, audits.share)
    power = f"{faulty:,} wrong updates ({nearest(100.0 * faulty / steps, digits=2)}%)"
    return (
        f"; {audits.audited:,} of {steps:,} steps audited: {power} would be found with probability {POWER:g}; {replays}"
    )


def run_facts(run: RecordedRun, rejected: Sequence[RunTest], rules: Sequence[FiredRule]) -> Iterator[str]:
    """The first facts of a faulty run: an exception, the missing end, other writes to weights, and advice on checks.

    A second optimizer moves parameters between the steps, so checks of the parameters follow from it and get no advice.
    """
    end = run.end
    if end is None:
        yield f"{run.missing_end[0].upper()}{run.missing_end[1:]}."
    elif end.error:
        yield f"{end.error} ended the block after {run.steps} steps."
    moved = [test for test in rejected if test.name in (MOVED.name, OTHER_PARAMETERS.name)]
    optimizers = _noted(run, second_optimizer.RULE, OtherOptimizers)
    with_others = [facts for facts in optimizers if facts is not None and facts.optimizers]
    # the caution is of the first part with another optimizer
    is_cause = bool(with_others) and with_others[0].changes_model
    causes = [rule for rule in rules if is_cause and rule.name == second_optimizer.RULE.name]
    for rule in causes if moved else ():
        yield f"{rule.text} {rule.fix}"
    yield from advice_on([test for test in rejected if not causes or test not in moved], rejected)
