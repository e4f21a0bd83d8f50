"""Replays of some steps with other records: the sensitivity of the sum, and records that mix.

The mistake: a record changes the gradients of other records, here by a loss over pairs of the batch::

    scores = embed(x) @ embed(y).T
    loss = F.cross_entropy(scores, torch.arange(len(x)))

:mod:`dpspec_recording.step_replay` traces a step from its batch to its clipped sum, repeats it with one record
replaced, and measures what moves. It also repeats steps at another batch size, which shows the reduction of the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpspec.contract import Assumption
from dpspec.text import several
from dpspec_recording.observers.observer import Observer, Training, emits
from dpspec_recording.outcomes.conditions import NOT_REPLAYED, stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted
from dpspec_recording.step_replay.facts import (
    BATCH_BEFORE,
    DATASET,
    PROCESSES,
    RADIUS,
    ROWS,
    TABLE,
    ReplayFacts,
)
from dpspec_recording.step_replay.limits import LARGEST_MOVE, MOVE_ROUNDING, ROWS_ROUNDING

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

#: Difference of powers of the batch size that rounding explains.
_SAME_POWER = 0.02

SUM_MOVED = Fault(
    name="sum-moved",
    condition="unmixed-batches",
    title="move of the clipped sum if a record is replaced in the replayed step, in clip norms",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/pull/751",
    advice=(
        "One record contributes more than the clip norm allows: look for several rows or backward passes "
        "for each record, losses that weigh records by the batch, and clipping of other values than a "
        "record's whole gradient."
    ),
)
REMOVED = Fault(
    name="sum-moved-without-records",
    condition="unmixed-batches",
    title="move of the clipped sum for each record that a replayed step omits or repeats, in clip norms",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/792",
    advice=(
        "A step without some of its records, or with some twice, moves the sum further than their "
        "contributions: look for contributions above the clip norm, and for losses that depend on the "
        "number of records."
    ),
)
OTHERS_MOVED = Fault(
    name="others-moved",
    condition="unmixed-batches",
    title=("change of other records' outputs, gradients or contributions if a record is replaced in the replayed step"),
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/792",
    advice=(
        "A record changes the results of other records: look for normalization, centering or attention over "
        "the batch, mixup, pairs or triplets of records, in-batch negatives, losses that divide by a total "
        "of the batch, scales from its longest record, clipping of a sum or a mean of several records, "
        "sums of earlier steps, forward passes that read the dataset (graphs, retrieval, class means), and "
        "layers with records in another order (Opacus' DPLSTM with enforce_sorted=False)."
    ),
)


class Replays(Observer[ReplayFacts]):
    """Notes the findings of the training's replayer; some kinds of training have none."""

    name, kind = "replays", ReplayFacts

    def start(self, training: Training) -> None:
        """Keep the replayer, which the adapter of the training drives."""
        self._replayer: Any = training.replayer
        self._obstacle = training.script_parts.replay_obstacle

    def facts(self) -> ReplayFacts:
        """What replays found, or why no step of this training can be replayed."""
        return ReplayFacts.of_none(self._obstacle) if self._replayer is None else self._replayer.facts

    @staticmethod
    def judge(facts: ReplayFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """A record moves the sum by two clip norms at most, and nothing of other records."""
        if facts is not None:
            yield from _moves(facts, run)
        if text := unreplayed(run):
            advice = f"Change this in the script, or accept it with --accept {NOT_REPLAYED}"
            yield doubted(NOT_REPLAYED, text=f"{text}. {advice}")
        yield _unmixed_batches(facts, run.norm_excess)
        reduction = loss_reduction(run)
        if reduction is not None:
            yield reduction

    @staticmethod
    def ask(facts: ReplayFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """A record must affect its own gradient alone, also in steps that are not replayed."""
        text = (
            "labels, features, scale, padding, weight, temperature, loss and choice of a record come from it alone: "
            "not from its batch, earlier ones or the dataset"
        )
        # a replay repeats numbers, although they vary: from earlier losses?
        if facts is not None and facts.varying:
            text += "; the loss uses numbers that vary between steps (no loss of earlier steps)"
        yield asked("one-record", f"{text}{why_not_replayed(run)}")
        finite = "gradients of all records are finite: no guard skips NaN or overflow"
        yield asked("unmixed-batches", finite)
        # the other branch may not have run
        if facts is not None and facts.testing:
            steps = several(facts.testing, "traced step")
            yield asked(
                "sampling",
                f"no batch is skipped, repeated or weighed by a condition on its records: {steps} tested such a "
                f"condition in Python before the sum ({_lines(facts.tested_at) or 'if, assert'})",
            )
        if facts is not None and facts.followed:
            steps = several(facts.followed, "traced step")
            yield asked(
                "sampling",
                f"no batch is skipped, repeated or weighed by a number that the script read of it: {steps} read such "
                f"numbers before the sum ({_lines(facts.read_at) or 'item(), numpy()'}), and used no other than "
                "replays repeat",
            )
        if isinstance(loss_reduction(run), Assumption):
            reduction = run.header.reduction
            yield asked(
                "loss-reduction", f"the loss is a {reduction} over the records of each batch, as loss_reduction says"
            )


def why_not_replayed(run: JudgedRun) -> str:
    """That no replayed step tests whether records mix, or why few of those tried; empty if most do."""
    replays = run.fact(Replays)
    tried, replayed = (0.0, 0.0) if replays is None else (replays.tried, replays.replayed)
    if run.audits is None or (replayed >= 1.0 and 2.0 * replayed >= tried):
        return ""
    if replays is None or not replayed:
        return "; no step was replayed to test this"
    reason = f" ({replays.failure})" if replays.failure else ""
    verb = "was" if round(replayed) == 1 else "were"
    return f"; only {replayed:.0f} of {tried:.0f} chosen steps {verb} replayed to test this{reason}"


def _lines(lines: Sequence[str]) -> str:
    """``train.py:31``, the first lines."""
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")


def unreplayed(run: JudgedRun) -> str:
    """The steps that no replay measured, and why; empty if each kind of step was replayed.

    Without a measurement, nothing bounds the effect of a record.
    """
    facts = run.fact(Replays)
    if facts is None:  # a recording with an end says so by itself
        reasons: Sequence[str] = () if run.audits is not None else ("the recording has no end",)
    else:
        reasons = facts.unreplayed
    if not reasons:
        return ""
    steps = "no step of some kinds" if facts is not None and facts.replayed >= 1.0 else "no step"
    return (
        f"{steps} was replayed with other records, so that nothing measured the effect of a record there: "
        f"{'; '.join(reasons)}"
    )


def _moves(facts: ReplayFacts, run: JudgedRun) -> Iterator[Issue]:
    # the bound reduces the noise multipliers by what rounding adds to the norms
    rounding = (1.0 + MOVE_ROUNDING) * (1.0 + run.norm_excess) - 1.0
    if facts.replayed >= 1.0:
        note = f"{facts.replacements:.0f} replacements at {facts.replayed:.0f} of {facts.tried:.0f} chosen steps"
        yield _replayed(SUM_MOVED, LARGEST_MOVE, facts.moved, LARGEST_MOVE * rounding, rounding, note)
        moved = max(facts.outputs, facts.gradients, facts.interaction, facts.earlier_sum)
        yield _replayed(OTHERS_MOVED, 0.0, moved, ROWS_ROUNDING, ROWS_ROUNDING, note)
    if facts.sizes is not None and facts.sizes.removed > 0.0:
        note = f"{facts.sizes.steps} steps at the batch size of another one"
        yield _replayed(REMOVED, 1.0, facts.sizes.removed, rounding, rounding, note)


def _replayed(fault: Fault, declared: float, moved: float, rounding: float, detectable: float, note: str) -> Issue:
    return fault.compared(moved <= declared + rounding, declared, moved, note, detectable, whole=False)


#: By the origin of the values on which a sum depends, the kind of such steps, the fault and its fix.
_DOUBTS = {
    BATCH_BEFORE: (
        "replayed step",
        "{} used values that the script computed from the batch before (a queue, a running mean, a hidden state): a "
        "record then also changes the gradients of later batches; compute nothing from a batch for later steps",
    ),
    PROCESSES: (
        "traced step",
        "the clipped sum of {} of a rank depends on values that other processes sent before it, such as embeddings, "
        "means or losses of their records: a record then also changes the gradients of others; exchange nothing before "
        "the noise but numbers that read no record",
    ),
    RADIUS: (
        "replayed step",
        "{} clipped the sum again as a whole, with a number from another tensor, such as the largest norm: no replay "
        "shows that this tensor depends on no record; clip to a constant number of Python",
    ),
    TABLE: (
        "replayed step",
        "{} used a table with a row for each record (a memory bank, embeddings, scores) at other records than the "
        "drawn ones, and its rows depend on the records: a record then also changes the gradients of others; read such "
        "a table at the drawn records alone",
    ),
    ROWS: (
        "replayed step",
        "{} used rows of the dataset outside of the batch (anchors, exemplars, a support set): these records change "
        "the gradients of all others; use public rows",
    ),
    DATASET: (
        "replayed step",
        "{} used values that the script computed from all records or from earlier batches (centroids, a mean "
        "prediction, a threshold): a record then also changes the gradients of others; compute them from public data, "
        "or with noise whose epsilon you add",
    ),
}


def _unmixed_batches(facts: ReplayFacts | None, norm_excess: float) -> Statement:
    doubts = []
    if facts is not None and facts.longest > (1.0 + MOVE_ROUNDING) * (1.0 + norm_excess):
        # a public term of the sum has this effect too, so that no deviation is certain
        doubts.append(
            f"the sum of a replayed batch of n equal records was {facts.longest:.4g} n clip norms long, at the "
            "executed parameters or at ten times larger ones: a record contributes more than the clip norm (with "
            "different thresholds of layers, the clip norm is the root of the sum of their squares), or the sum has a "
            "term of public data; report the sum of the contributions alone"
        )
    if facts is not None:
        counted = ((count, *_DOUBTS[name]) for name in _DOUBTS if (count := facts.origins.get(name)))
        doubts += [text.format(several(count, kind)) for count, kind, text in counted]
    text = f", but {', and '.join(doubts)}" if doubts else _tested(facts)
    return doubted("unmixed-batches", text) if doubts else stated("unmixed-batches", text)


def _tested(facts: ReplayFacts | None) -> str:
    if facts is not None and facts.replayed >= 1.0:
        text = f"; {facts.replayed:.0f} steps were replayed with other records, and tested"
        if facts.projected:
            text += f", {several(facts.projected, 'step')} before the loop clipped the sum again as a whole"
        return text
    return ""


def loss_reduction(run: JudgedRun) -> Statement | None:
    """The statement on ``loss-reduction``; None if the recording shows that the loss is the declared mean or sum.

    It is doubted if replays at another batch size (``docs/explanation/replay.md``) measure another reduction, and
    declared if no step was replayed so.
    """
    facts, declared = run.fact(Replays), run.header.reduction
    if run.audits is None or not emits(run.header, "before_sum"):
        return None
    if facts is None or facts.sizes is None:
        sizes = np.unique(run["rows"][np.isfinite(run["rows"])])
        return None if len(sizes) < 2 else stated("loss-reduction", "; no step was replayed at another batch size")
    steps, low, high = facts.sizes.steps, facts.sizes.lowest, facts.sizes.highest
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
    return doubted("loss-reduction", text)
