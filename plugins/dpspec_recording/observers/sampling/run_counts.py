"""Rules over the counts of a run, without an observer.

A mistake: the accountant counts a noisy step for an empty batch, and the loop makes none::

    if len(x) == 0:
        continue
"""

from collections.abc import Mapping
from typing import Any

from dpspec.contract import rules
from dpspec.contract.rules import MADE_TWICE, Rule, RuleRun, TrainingRule

_HOME = "dpspec_recording.observers.sampling.run_counts"

#: Minimum of expected empty batches, so that their absence is not a coincidence.
_EXPECTED_EMPTY = 5.0

#: Largest probability of a run without an empty batch, if all batches are Poisson samples, at which the rule fires.
_COINCIDENCE = 1e-6

LARGE_DELTA = Rule(
    name=rules.LARGE_DELTA,
    summary="delta is at least 1 over the number of records",
    why=rules.LARGE_DELTA_WHY,
    fix=rules.LARGE_DELTA_FIX,
    source="https://github.com/tensorflow/privacy/issues/71",
    code=f"{_HOME}:LargeDelta",
)


class LargeDelta(TrainingRule[Mapping[str, Any]]):
    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        return "" if run.records is None else rules.large_delta(run.delta, run.records)


EMPTY_BATCH_SKIPPED = Rule(
    name="empty-batch-skipped",
    summary="empty batches got no step, or were drawn again",
    why="The accounting assumes a noisy step for each batch, also an empty one; its absence reveals the batches.",
    fix="Step with noise alone if a batch is empty; Opacus does so if the loop does not skip it.",
    source="https://github.com/meta-pytorch/opacus/issues/161",
    code=f"{_HOME}:EmptyBatchSkipped",
)


class EmptyBatchSkipped(TrainingRule[Mapping[str, Any]]):
    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        if run.records is None or run.rate is None or run.empty_steps != 0:
            return ""
        empty = (1.0 - run.rate) ** run.records
        if not run.own_loop and run.drawn_batches is not None:
            skipped, expected = run.drawn_batches - run.steps, run.drawn_batches * empty
            if expected >= _EXPECTED_EMPTY and 0 < skipped <= 3.0 * expected:
                return (
                    f"{skipped} of {run.drawn_batches} drawn batches got no separate step, and no step has an empty "
                    f"batch, where about {expected:.0f} are expected: empty batches were skipped."
                )
        if (1.0 - empty) ** run.steps > _COINCIDENCE:
            return ""
        return (
            f"None of {run.steps} steps has an empty batch, where about {run.steps * empty:.0f} are expected: empty "
            "batches were skipped, filled or drawn again."
        )


BATCHES_UNUSED = Rule(
    name="batches-unused",
    summary="batches were drawn and passed over in the middle of the training",
    why="If the content of a batch decides whether it is used, the batches are not random samples.",
    fix="Step once for every drawn batch.",
    source=MADE_TWICE,
    code=f"{_HOME}:BatchesUnused",
)


class BatchesUnused(TrainingRule[Mapping[str, Any]]):
    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        if run.own_loop or run.drawn_batches is None or run.used_batches is None or run.passed_over is None:
            return ""
        unused = run.drawn_batches - run.used_batches
        if unused <= 0 or run.passed_over <= max(3, run.steps // 4):
            return ""
        return f"{unused} of {run.drawn_batches} drawn batches were passed over before later ones were used."


OWN_LOOP_SKIPS = Rule(
    name="own-loop-skips",
    summary="the loader of a custom loop drew more batches than the loop reported",
    why="A skipped batch changes the distribution of the others, and costs privacy if its gradient was used.",
    fix="Report each drawn batch with run.sampled, also an empty one, and step with its noise.",
    source=MADE_TWICE,
    code=f"{_HOME}:OwnLoopSkips",
)


class OwnLoopSkips(TrainingRule[Mapping[str, Any]]):
    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        if not run.own_loop or run.drawn_batches is None or run.drawn_batches <= run.steps:
            return ""
        return f"The loader drew {run.drawn_batches} batches, and the loop reported {run.steps} steps."


MORE_ROWS = Rule(
    name="more-rows-than-records",
    summary="steps have more rows of gradients than drawn records",
    why="A record with several rows is clipped once for each row, and changes the sum by several clip norms.",
    fix="Make one row of gradients per record: one backward pass a step, on the sum of a record's losses.",
    source="https://github.com/meta-pytorch/opacus/issues/461",
    code=f"{_HOME}:MoreRows",
)


class MoreRows(TrainingRule[Mapping[str, Any]]):
    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        rows, drawn = run.gradient_rows, run.drawn_records
        if not rows or not drawn or rows <= drawn:
            return ""
        return f"{drawn} drawn records gave {rows} rows of gradients, {rows / drawn:.3g} rows for each record."


ZERO_GRADIENT_ROWS = Rule(
    name="zero-gradient-rows",
    summary="in most steps at least a quarter of the records has a gradient of exactly zero",
    why="If a record's loss is dropped because others in its batch are larger (mining), records affect each other.",
    fix="Let each record's loss depend on this record only; accept if it does, as a hinge loss does.",
    source=MADE_TWICE,
    code=f"{_HOME}:ZeroGradientRows",
)


class ZeroGradientRows(TrainingRule[Mapping[str, Any]]):
    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        zero, steps = run.zero_quarter_steps, run.norm_steps
        if steps < 10 or zero <= steps / 2:
            return ""
        return f"In {zero} of {steps} steps a quarter or more of the records has a gradient of exactly 0."


RULES = (LARGE_DELTA, EMPTY_BATCH_SKIPPED, BATCHES_UNUSED, OWN_LOOP_SKIPS, MORE_ROWS, ZERO_GRADIENT_ROWS)
