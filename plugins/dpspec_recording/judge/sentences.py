"""Sentences on a recorded run for its user: conditions to confirm, the executed schedule, and faults."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from dpspec.contract.executed import FiredRule
from dpspec.decimals import nearest
from dpspec.text import joined
from dpspec_recording.folder.audit_facts import POWER, found_faults
from dpspec_recording.folder.script_facts import MOST_LISTED, ScriptFacts
from dpspec_recording.judge.advice import advice_on
from dpspec_recording.judge.joined_checks import received_parts
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.run_claim import installed_rules
from dpspec_recording.judge.section import reports_batches
from dpspec_recording.observers.constants.options import values_in_words
from dpspec_recording.observers.judged_run import Terms
from dpspec_recording.observers.rules import Rules, explained_by
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.observers.update_rule import second_optimizer
from dpspec_recording.observers.update_rule.second_optimizer import OtherOptimizers
from dpspec_recording.outcomes.issue import Issue, asked, by_question


def confirmations(
    run: RecordedRun,
    group_size: int,
    public: Collection[str],
    *,
    released: bool = False,
    adjacency: str = "zero-out",
) -> Iterator[str]:
    """The assumptions of a proof that no recording shows, each a sentence that a person can confirm.

    released: whether the model to be released is the recorded one at its end. adjacency: of the claim.
    """
    terms = Terms(group_size=group_size, public=public, adjacency=adjacency)
    questions = [*_of_script(run, released=released), *run.asked(terms)]
    return (issue.text for issue in by_question(questions) if issue.level == "confirm")


#: The end of the sentence on other trainings.
_NO_TEACHER = "and no teacher or other model that read them is used"


def _of_script(run: RecordedRun, *, released: bool) -> Iterator[Issue]:
    """The questions on the script around the training."""
    script = run.folder.script
    if script is None:
        when = "before or during the block" if released else "before, during or after the block"
        yield asked("released-model", f"nothing else was trained on these records, {when}, {_NO_TEACHER}")
    else:
        yield from (asked("released-model", sentence) for sentence in _outside(run, script, released=released))
    if run.resumed is not None and received_parts(run.resumed):
        text = "the server has of these records only the weights after each part: no other update, statistic or loss"
        yield asked("server-weights", text)
    choices = f"checkpoints, stopping by loss{_reads(run, script)}"
    model = "model was" if released else "weights follow from recorded ones, and were"
    yield asked("model-choice", f"the released {model} chosen without records ({choices})")


def _outside(run: RecordedRun, script: ScriptFacts, *, released: bool) -> Iterator[str]:
    """The sentences that a person confirms about other trainings, if the recorder watched the whole script.

    The recorder counts steps of torch's optimizers. It does not see a training by other means.
    """
    rules = run.fact(Rules)
    optimizers = () if rules is None else rules.of(second_optimizer.RULE, OtherOptimizers)
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


def executed_sentence(run: RecordedRun) -> str:
    """``100 steps, rate 0.05, noise multiplier 1, clip norm 1, learning rate 0.1; SGD on 738 parameters``."""
    header = run.header
    noise = np.array([np.nan if sigma is None else sigma for sigma in run.configured_multipliers])
    rates = np.array([np.nan if rate is None else rate for rate in run.rates])
    quantities = [("rate", rates), ("noise multiplier", noise), ("clip norm", run["clip_norm"])]
    quantities.append(("learning rate", run["learning_rate"]))
    phrases = [f"{run.steps:,} step{'' if run.steps == 1 else 's'}"]
    phrases += [f"{name} {text}" for name, values in quantities if (text := values_in_words(values))]
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


def run_facts(run: RecordedRun, rejected: Sequence[Issue], rules: Sequence[FiredRule]) -> Iterator[str]:
    """The first facts of a faulty run: an exception, the missing end, cautions that explain tests, and advice."""
    end = run.end
    if end is None:
        yield f"{run.missing_end[0].upper()}{run.missing_end[1:]}."
    elif end.error:
        yield f"{end.error} ended the block after {run.steps} steps."
    installed, explained = installed_rules(), set[str]()
    for rule in rules:
        named = {*explained_by(run, installed[rule.name])} if rule.name in installed else set[str]()
        if named & {test.name for test in rejected}:
            explained |= named
            yield f"{rule.text} {rule.fix}"
    yield from advice_on([test for test in rejected if test.name not in explained], rejected)
